"""Reads of the pages: what one page or region shows, gathered with the viewer's eyes."""
