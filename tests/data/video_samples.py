"""Small videos for the tests: frames that tell their number, uneven sides, several containers."""

from __future__ import annotations

import io
import struct
from fractions import Fraction

import av
import numpy as np

from tests.data.samples import encoded
from vit_rpe.data.making import frame_archive

CONTAINERS = {
    "mp4": ("mp4", "libx264", {"g": "7"}),  # several key frames, and frames out of order
    "webm": ("webm", "libvpx-vp9", {"g": "7", "cpu-used": "8", "deadline": "realtime"}),
    "mkv": ("matroska", "libx264", {"g": "7"}),
    "avi": ("avi", "mpeg4", {"g": "7"}),
    "B-frames": ("avi", "mpeg4", {"g": "7", "bf": "2"}),
    "mov": ("mov", "mjpeg", {}),
}


def numbered(count: int, height: int = 24, width: int = 40) -> np.ndarray:
    """Frames whose brightness is 10 + 7 * number on the left, and falls on the right."""
    frames = np.zeros((count, height, width, 3), np.uint8)
    level = 10 + 7 * np.arange(count)[:, None, None, None]
    frames[:, :, : width // 2], frames[:, :, width // 2 :] = level, 255 - level
    return frames


def number_of(frame: np.ndarray) -> int:
    """The number that a frame (H, W, 3) tells."""
    return round((float(frame[:, : frame.shape[1] // 3].mean()) - 10) / 7)


def video(count: int, ending: str = "mp4", height: int = 24, width: int = 40) -> bytes:
    container, codec, options = CONTAINERS[ending]
    stream = io.BytesIO()
    with av.open(stream, "w", format=container) as file:
        track = file.add_stream(codec, rate=10, options=options)
        track.height, track.width, track.bit_rate = height, width, 4_000_000
        track.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for frame in numbered(count, height, width):
            file.mux(track.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        file.mux(track.encode())
    return stream.getvalue()


def remuxed(data: bytes, first: int) -> bytes:
    """An mp4 file that begins with frame `first`, cut without encoding: an edit list hides what its
    decoder needs and nobody is to see."""
    stream = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(stream, "w", format="mp4") as target:
        old = source.streams.video[0]
        new = target.add_stream_from_template(old)
        shift = int(first / 10 / old.time_base)  # 10 frames a second
        for packet in source.demux(old):
            if packet.size:
                packet.pts, packet.dts, packet.stream = packet.pts - shift, packet.dts - shift, new
                target.mux(packet)
    return stream.getvalue()


def swapped_pictures(data: bytes, pictures: list[bytes]) -> bytes:
    """A Motion JPEG file whose header is that of `data`, and whose pictures are others."""
    stream = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(stream, "w", format="mov") as target:
        new = target.add_stream_from_template(source.streams.video[0])
        for number, picture in enumerate(pictures):
            packet = av.Packet(picture)
            packet.pts = packet.dts = number * 1024
            packet.time_base, packet.stream, packet.is_keyframe = Fraction(1, 10240), new, True
            target.mux(packet)
    return stream.getvalue()


def turned(data: bytes) -> bytes:
    """The mov file with a display matrix that turns it clockwise by a quarter."""
    place = data.index(b"tkhd") + 4 + 40  # version 0: the matrix, nine numbers of 32 bits
    one = 1 << 16
    matrix = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    return data[:place] + matrix + data[place + 36 :]


def archive(i: int, count: int = 6, height: int = 9, width: int = 14) -> bytes:
    """A zip archive of `count` noisy frames: those of sample i."""
    return frame_archive(
        ("png", encoded(100 * i + t, height=height, width=width)) for t in range(count)
    )


def clip_sample(i: int, label: int | None = None, key: str | None = None, **sides: int) -> dict:
    label = i % 10 if label is None else label
    return {"__key__": key or f"k{i:04d}", "zip": archive(i, **sides), "cls": str(label).encode()}


RICH = {
    "crop": {"scale": (0.2, 0.9), "ratio": (0.5, 2.0), "hflip": 0.5, "vflip": 0.5},
    "colour": {"color_jitter": 0.4, "interpolation": "bilinear"},
    "rand": {"auto_augment": "rand-m9-n3"},
    "trivial": {"auto_augment": "trivial", "interpolation": "bicubic"},
}
