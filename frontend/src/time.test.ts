import { expect, test } from "vitest";
import { age, running } from "./time";

const plain = (words: string) => words.replaceAll("\u00a0", " ");

test.each([
  [-5_000, "0 s"],
  [20_900, "20 s"],
  [41 * 60_000, "41 min"],
  [(2 * 60 + 41) * 60_000, "2 h 41"],
  [30 * 3_600_000, "1 d 6 h"],
])("an age of %d ms reads %s", (ms, words) => {
  expect(plain(age(ms))).toBe(words);
});

test.each([
  [20_040, 1, "20.0 s"],
  [125_000, 1, "2 min 05 s"],
  [7_500_000, 0, "2 h 05 min"],
])("a clock at %d ms reads %s", (ms, digits, words) => {
  expect(plain(running(ms, digits))).toBe(words);
});
