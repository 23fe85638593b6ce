//! Any frames from any guests into an uplink whose device is now and then full: no code point of a guest's leaves, every frame
//! leaves, waits or is counted, and nothing waits for ever.
//!
//! Cost: the device is asked five times at most for a frame that it refuses, and once in a call when it is full; the queue is looked at no more
//! than a few times for each frame and step.

#![no_main]

use std::sync::{Arc, Mutex, PoisonError};

use arbitrary::Arbitrary;
use floodway_core::egress::qdisc::{self, Kind};
use floodway_core::l2::PortId;
use floodway_core::time::{Duration, Instant};
use floodway_switch::config::{MeterConfig, QueueConfig};
use floodway_switch::egress::{Egress, LinkRate, Outbox, Settings, SharedEgress};
use floodway_switch::frame;
use floodway_switch::frame::iovec::GuestIoVec;
use floodway_switch::frame::vnet_offload::Offloads;
use floodway_switch::stats::DropReason;
use floodway_switch::uplink::{Capabilities, SendError, Sender};
use floodway_wire::traffic_class::traffic_class;
use floodway_wire::vnet::VnetHdr;
use libfuzzer_sys::fuzz_target;

/// Steps and looks at the queue that no frame has to answer for.
const CALLS: u64 = 1 << 12;
/// How often a frame is tried that the device refuses.
const ATTEMPTS: u64 = 5;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    kind: u8,
    segment: bool,
    rate_mbit: Option<u16>,
    limit_packets: u8,
    steps: Vec<Step<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    /// As a guest sends it, if its header passes the check that every guest's does.
    Send {
        source: u8,
        hdr: [u8; 12],
        bytes: &'a [u8],
        ip: Option<bool>,
        repeat: u8,
    },
    Wait {
        us: u16,
    },
    Room {
        frames: Option<u8>,
        refuses: Option<u8>,
    },
}

#[derive(Default)]
struct Wire {
    room: Option<usize>,
    /// It refuses frames whose first octet is a multiple of this.
    refuses: Option<u8>,
    frames: u64,
    /// Frames that it has refused, and how often it was full.
    refused: u64,
    full: u64,
}

#[derive(Clone, Default)]
struct Device(Arc<Mutex<Wire>>);

impl Sender for Device {
    fn capabilities(&self) -> Capabilities {
        Capabilities { csum: true, tso: true }
    }

    fn send(&mut self, _: &VnetHdr, parts: &[GuestIoVec<'_>]) -> Result<(), SendError> {
        let mut wire = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let len = parts.iter().map(GuestIoVec::len).sum::<usize>();
        let mut bytes = vec![0; len];
        let whole = frame::Frame { vnet: VnetHdr::default(), prefix: &[], parts, len: len as u32 };
        whole.copy_to(&mut bytes);
        let first = bytes.first().copied().unwrap_or_default();
        if wire.refuses.is_some_and(|n| first.is_multiple_of(n)) {
            wire.refused += 1;
            return Err(SendError::Refused);
        }
        if wire.room == Some(0) {
            wire.full += 1;
            return Err(SendError::Full);
        }
        wire.room = wire.room.map(|room| room - 1);
        wire.frames += 1;
        if let Some(class) = traffic_class(&bytes) {
            assert!([0, 46].contains(&(class >> 2)), "a guest's code point has left");
        }
        Ok(())
    }
}

fuzz_target!(|input: Input<'_>| {
    let device = Device::default();
    let discipline = qdisc::Config {
        kind: Kind::ALL[usize::from(input.kind) % Kind::ALL.len()],
        limit_packets: u32::from(input.limit_packets).max(1),
        ..qdisc::Config::default()
    };
    let rate = input.rate_mbit.map(|mbit| u64::from(mbit.max(1)) * 1_000_000);
    let settings = Settings {
        queue: QueueConfig { discipline, segment: Some(input.segment), rate, device_bytes: None },
        meter: MeterConfig::default(),
        link: LinkRate::default(),
        guests: 256,
        counters: None,
        seed: 1,
    };
    let egress = Egress::new(Box::new(device.clone()), &settings, Instant::ZERO);
    let egress = SharedEgress::new(egress);
    let next_look = || egress.with(|egress| egress.next_look());
    let sent = Outbox::default();
    let (mut now, mut offered) = (Instant::ZERO, 0_u64);
    let mut calls = 0;
    for step in input.steps {
        calls += 1;
        match step {
            Step::Send { source, hdr, bytes, ip, repeat } => {
                let mut bytes = bytes.repeat(usize::from(repeat) + 1);
                bytes.truncate(65_000);
                if let (Some(v6), Some(field)) = (ip, bytes.get_mut(12..14)) {
                    field.copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
                }
                let prefix = &bytes[..bytes.len().min(frame::PREFIX_LEN)];
                let hdr = VnetHdr::from_bytes(&hdr);
                let Ok(vnet) = Offloads::ALL.check(hdr, prefix, bytes.len() as u32) else {
                    continue;
                };
                offered += u64::from(!vnet.is_gso());
                frame::with_slice(vnet, &bytes, |frame| {
                    let frames = std::iter::once(*frame);
                    egress.send(PortId(source.into()), now, frames, &sent, |_| ());
                });
            }
            Step::Wait { us } => {
                now += Duration::from_micros(us.into());
                egress.with(|egress| egress.pump(now, &sent));
                (0..=u8::MAX).for_each(|source| {
                    egress.resume(PortId(source.into()), now, &sent, |_| ());
                });
            }
            Step::Room { frames, refuses } => {
                let mut wire = device.0.lock().unwrap_or_else(PoisonError::into_inner);
                wire.room = frames.map(usize::from);
                wire.refuses = refuses;
            }
        }
    }
    device.0.lock().unwrap_or_else(PoisonError::into_inner).room = None;
    for source in (0..=u8::MAX).map(|source| PortId(source.into())) {
        while egress.resume(source, now, &sent, |_| ()).is_some() {
            assert!(egress.is_uncut(source) || egress.resume(source, now, &sent, |_| ()).is_none());
        }
    }
    while next_look() < Instant::NEVER {
        now = now.max(next_look());
        egress.with(|egress| egress.pump(now, &sent));
        calls += 1;
        let frames = device.0.lock().unwrap_or_else(PoisonError::into_inner).frames;
        assert!(calls <= CALLS + 4 * (frames + offered), "{calls} looks for {frames} frames");
    }
    let dropped: u64 = DropReason::ALL.iter().map(|&reason| sent.drops(reason)).sum();
    let (refused, full) = {
        let wire = device.0.lock().unwrap_or_else(PoisonError::into_inner);
        (wire.refused, wire.full)
    };
    assert!(full <= calls, "{full} attempts at a full device in {calls} calls");
    let left = device.0.lock().unwrap_or_else(PoisonError::into_inner).frames;
    assert!(refused <= ATTEMPTS * (left + dropped), "{refused} refused, {dropped} dropped");
    assert!(left + dropped >= offered, "{left} left, {dropped} dropped, {offered} offered");
    assert_eq!(sent.packets.get(), left);
});
