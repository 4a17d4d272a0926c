import { expect, test } from "vitest";
import { type Message, parse, Sequence } from "./sequence";

const notice = (n: number, t = "job:1"): Message => ({
  n,
  t,
  k: "step",
  at: "2026-11-30T00:00:00Z",
  d: {},
});
const hello = (seq: number): Message => ({
  hello: { seq, topics: ["job:1", "overview"], interval: 5 },
});

test("a page asks from where it was rendered", () => {
  expect(new Sequence(81234).subscription(["overview", "job:1"])).toEqual({
    sub: ["overview", "job:1"],
    since: 81234,
  });
});

test("a notice names its topic once, however often it is repeated", () => {
  const sequence = new Sequence(10);
  expect(sequence.take(notice(11)).topics).toEqual(["job:1"]);
  expect(sequence.take(notice(11)).topics).toEqual([]);
});

test("a lower number that was never seen is news: its transaction committed late", () => {
  const sequence = new Sequence(10);
  sequence.take(notice(12));
  expect(sequence.take(notice(11)).topics).toEqual(["job:1"]);
  expect(sequence.last).toBe(12);
});

test("after a reconnect it asks from the highest number it has seen", () => {
  const sequence = new Sequence(10);
  sequence.take(hello(40));
  sequence.take(notice(41));
  sequence.take(notice(39));
  expect(sequence.subscription([]).since).toBe(41);
});

test("a gap asks for the topic to be read again and keeps the number", () => {
  const sequence = new Sequence(7);
  expect(sequence.take({ gap: true, t: "job:1" })).toEqual({ topics: ["job:1"], gap: true });
  expect(sequence.last).toBe(7);
});

test("a server that counts from below ours has another history: everything is read again", () => {
  const sequence = new Sequence(500);
  sequence.take(notice(501));
  expect(sequence.take(hello(3))).toEqual({ topics: ["job:1", "overview"], gap: true });
  expect(sequence.take(notice(4)).topics).toEqual(["job:1"]);
});

test("beats are no news", () => {
  expect(new Sequence(1).take({ beat: 1 }).topics).toEqual([]);
});

test("numbers are remembered without bound neither in memory nor in time", () => {
  const sequence = new Sequence(0);
  for (let n = 1; n <= 2000; n += 1) sequence.take(notice(n));
  expect(sequence.take(notice(2000)).topics).toEqual([]);
  expect((sequence as unknown as { seen: Set<number> }).seen.size).toBeLessThanOrEqual(512);
});

test.each(["", "[]", "7", "null", "{", '{"x":1}', '"n"'])(
  "what is not ours is ignored: %s",
  (text) => {
    expect(parse(text)).toBeNull();
  },
);

test("what is ours is taken", () => {
  expect(parse('{"beat":1}')).toEqual({ beat: 1 });
});
