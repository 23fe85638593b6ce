//! Cost of what every packet pays: parsing, hashing, checksums, segmentation, coalescing.

#![allow(missing_docs, reason = "criterion's macros generate public functions")]

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use floodway_wire::build::{Link, Tcp};
use floodway_wire::checksum::{ChecksumState, Sum};
use floodway_wire::coalescing::Coalescer;
use floodway_wire::segmentation::Segmenter;
use floodway_wire::tcp::OptionSummary;
use floodway_wire::{MacAddr, Meta, parse};

const MSS: u16 = 1448;
const TIMESTAMPS: [u8; 12] = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];

fn segment(src: &str, dst: &str) -> Tcp {
    let link = Link::new(MacAddr([2; 6]), MacAddr([4; 6]));
    let address = |text: &str| text.parse().expect("an address and a port");
    let mut tcp = Tcp::new(link, address(src), address(dst));
    tcp.options = TIMESTAMPS.to_vec();
    tcp
}

fn v4() -> Tcp {
    segment("10.0.0.1:1024", "10.0.0.2:80")
}

fn parsing(c: &mut Criterion) {
    let mut group = c.benchmark_group("parse");
    let v6 = segment("[fd00::1]:1024", "[fd00::2]:80").build(&[0; 64]);
    let v4 = v4().build(&[0; 64]);
    for (name, frame) in [("tcp_v4", &v4), ("tcp_v6", &v6)] {
        group.bench_function(name, |b| b.iter(|| parse(black_box(frame), 1514)));
    }
    let meta = parse(&v4, 1514).expect("a good frame");
    group.bench_function("options", |b| {
        b.iter(|| OptionSummary::parse(black_box(&TIMESTAMPS)));
    });
    group.bench_function("flow_hash", |b| b.iter(|| black_box(&meta.flow).hash(7)));
    group.finish();
}

fn checksums(c: &mut Criterion) {
    let mut group = c.benchmark_group("checksum");
    for len in [20, 64, 1500, 65_536] {
        let bytes = vec![0xa5; len];
        group.throughput(Throughput::Bytes(len as u64));
        group.bench_function(len.to_string(), |b| {
            b.iter(|| Sum::of(black_box(&bytes)).checksum());
        });
    }
    group.finish();
}

/// Cuts a GSO packet and hands every frame on.
fn cut(frame: &[u8], out: &mut [u8], mut each: impl FnMut(&[u8])) {
    let mut segmenter = Segmenter::new(frame, MSS).expect("a good frame");
    while let Ok(Some(len)) = segmenter.write_next(out) {
        each(&out[..len]);
    }
}

fn offload(c: &mut Criterion) {
    let mut group = c.benchmark_group("offload");
    let frame = v4().build_partial(&vec![0x5a; usize::from(MSS) * 44]);
    let mut out = [0; 2048];
    group.throughput(Throughput::Bytes(frame.len() as u64));
    group.bench_function("segment_64k", |b| {
        b.iter(|| {
            cut(black_box(&frame), &mut out, |f| {
                black_box(f);
            });
        });
    });
    let mut segments: Vec<(Vec<u8>, Meta)> = Vec::new();
    cut(&frame, &mut out, |f| {
        segments.push((f.to_vec(), parse(f, f.len()).expect("a good frame")));
    });
    let mut coalescer = Coalescer::new(vec![0; 1 << 16]);
    for (name, state) in [
        ("coalesce_64k", ChecksumState::Unverified),
        ("coalesce_64k_verified", ChecksumState::Verified),
    ] {
        group.bench_function(name, |b| {
            b.iter(|| {
                for (frame, meta) in &segments {
                    black_box(coalescer.offer(frame, meta, state));
                }
                black_box(coalescer.finish().is_some())
            });
        });
    }
    group.finish();
}

criterion_group!(benches, parsing, checksums, offload);
criterion_main!(benches);
