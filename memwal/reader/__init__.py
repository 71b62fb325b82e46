"""Readers: which generations a read needs, and the newest row of every key among them."""
