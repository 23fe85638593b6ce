"""Smaller PNG files: pictures of a page have few colours, and need no more than a palette."""

import struct
import zlib
from collections import Counter

COLOURS = 256
# Squared distance from which on two colours are told apart.
APART = 64


def squeeze(png: bytes) -> bytes:
    """The picture with the 256 most frequent of its colours that can be told apart; the others become the nearest of these."""
    width, height, depth, kind = struct.unpack(">IIBB", png[16:26])
    assert depth == 8 and kind in (2, 6), "only RGB and RGBA with 8 bits"
    size = 3 if kind == 2 else 4
    rows = unfilter(zlib.decompress(b"".join(chunks(png, b"IDAT"))), width * size, height, size)
    pixels = [[row[at : at + 3] for at in range(0, width * size, size)] for row in map(bytes, rows)]
    frequent = Counter(pixel for row in pixels for pixel in row).most_common()
    palette: list[bytes] = []
    for pixel, _ in frequent:
        if len(palette) < COLOURS and all(distance(known, pixel) >= APART for known in palette):
            palette.append(pixel)
    place = {pixel: min(range(len(palette)), key=lambda n: distance(palette[n], pixel)) for pixel, _ in frequent}
    lines = b"".join(b"\0" + bytes(place[pixel] for pixel in row) for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [(b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    return png[:8] + b"".join(map(chunk, *zip(*parts)))


def distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def chunks(png: bytes, wanted: bytes) -> list[bytes]:
    """The data of all chunks with that name."""
    found, at = [], 8
    while at < len(png):
        length, name = struct.unpack(">I4s", png[at : at + 8])
        if name == wanted:
            found.append(png[at + 8 : at + 8 + length])
        at += 12 + length
    return found


def unfilter(data: bytes, length: int, height: int, size: int) -> list[bytearray]:
    """Rows of bytes, without the filters that the standard calls Sub, Up, Average and Paeth."""
    rows, above = [], bytearray(length)
    for y in range(height):
        start = y * (length + 1)
        kind, row = data[start], bytearray(data[start + 1 : start + 1 + length])
        for x in range(length):
            left = row[x - size] if x >= size else 0
            corner = above[x - size] if x >= size else 0
            row[x] = (row[x] + predicted(kind, left, above[x], corner)) & 255
        rows.append(row)
        above = row
    return rows


def predicted(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 3:
        return (0, left, up)[kind]
    if kind == 3:
        return (left + up) // 2
    return min((left, up, corner), key=lambda value: abs(left + up - corner - value))
