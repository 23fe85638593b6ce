//! Connections on their way from one data plane to the next, in memory that a broker gives to one after the other.
//!
//! # Theory of operation
//! **File.** A head, then a record for each port, each with those of its connections behind it ([`core`](floodway_core::offload) has their contents), then an end. Numbers
//! are little-endian.
//!
//! | | bytes |
//! |---|---|
//! | head | `fwflows\0` · [`FORMAT`] (8) |
//! | record | kind (1) · length (4) · content |
//! | content of a port (kind 1) | instance (8) · nanoseconds by which its engine's clock is behind the host's monotonic one, modulo 2^64 (8) · core's record |
//! | content of a connection (kind 2) | core's record |
//! | end (kind 3) | length zero |
//! | content of a port whose guest moves (kind 4) | time of its engine (8) · the guest's nonce (8) · core's record |
//!
//! The file of an [upgrade](read) has records of any number of ports, that of a [move](read_moved) begins with one of kind 4 and has no other.
//!
//! Nothing of a file without its end is believed: whoever wrote it has ended over it. A connection for which there is no room is left out, and with it those that
//! come behind it.
//!
//! **Clocks.** Times in records are those of the engine that wrote them, whose clock began with its process. An engine that goes on with them has a clock that goes on: ahead of its
//! switch's, or behind it if it began on another host ([`Arrived::ahead`]). On another host only the time itself means anything.
//!
//! **Strangers.** The process that wrote it may have been taken over, and may go on writing: everything is copied before it is looked at. Lengths are checked against the file's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use floodway_core::offload::Carried;
pub use floodway_core::offload::FORMAT;
use floodway_core::time::Instant;
use rustix::time::{ClockId, clock_gettime};

const MAGIC: [u8; 8] = *b"fwflows\0";
const HEAD: usize = 16;
/// Kind and length of a record.
const RECORD: usize = 5;
const PORT: u8 = 1;
const CONNECTION: u8 = 2;
const END: u8 = 3;
const MOVED: u8 = 4;
/// What a port's record begins with, of either kind.
const PORT_HEAD: usize = 16;
/// Bytes that are written or read at once: frames stand still meanwhile.
const CHUNK: usize = 256 << 10;
/// Times of engines are below: 146 years. What is added to one stays in range then.
const LATEST: u64 = 1 << 62;

/// The host's monotonic clock, in nanoseconds.
fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Writes connections.
pub struct FlowsWriter {
    file: BufWriter<File>,
    /// Bytes that records may still take.
    room: u64,
    /// Bytes that were written.
    written: u64,
}

impl FlowsWriter {
    /// Begins to write into `file`, which is `bytes` long, and of which nothing was written yet.
    ///
    /// # Errors
    /// It cannot be written, or is too short.
    pub fn begin(file: OwnedFd, bytes: u64) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(CHUNK, File::from(file));
        file.write_all(&MAGIC)?;
        file.write_all(&u64::from(FORMAT).to_le_bytes())?;
        let room = bytes.saturating_sub((HEAD + RECORD) as u64);
        Ok(Self { file, room, written: HEAD as u64 })
    }

    /// Writes the record of a port and those of its connections, as `export` gives them to what it is called with, which returns `false` if there is no room. `now` is the clock of
    /// the port's engine.
    ///
    /// # Errors
    /// The file takes no more.
    pub fn port(
        &mut self,
        instance: u64,
        now: Instant,
        export: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool),
    ) -> io::Result<()> {
        let behind = monotonic().wrapping_sub(now.as_nanos());
        self.records(PORT, [instance, behind], export)
    }

    /// As [`port`](Self::port), of a port whose guest moves to another host, and who wants to find `nonce` in notices.
    ///
    /// # Errors
    /// As there.
    pub fn moved(
        &mut self,
        now: Instant,
        nonce: u64,
        export: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool),
    ) -> io::Result<()> {
        self.records(MOVED, [now.as_nanos(), nonce], export)
    }

    fn records(
        &mut self,
        mut kind: u8,
        head: [u64; 2],
        export: impl FnOnce(&mut dyn FnMut(&[u8]) -> bool),
    ) -> io::Result<()> {
        let mut result = Ok(());
        let mut head = head.map(u64::to_le_bytes).concat();
        export(&mut |record| {
            let written = self.record(kind, &[&head, record]);
            (kind, head) = (CONNECTION, Vec::new());
            match written {
                Ok(written) => written,
                Err(error) => {
                    result = Err(error);
                    false
                }
            }
        });
        result
    }

    /// Returns `false` if there is no room.
    fn record(&mut self, kind: u8, content: &[&[u8]]) -> io::Result<bool> {
        let len: usize = content.iter().map(|part| part.len()).sum();
        let taken = (RECORD + len) as u64;
        let Ok(len) = u32::try_from(len) else { return Ok(false) };
        let Some(room) = self.room.checked_sub(taken) else { return Ok(false) };
        (self.room, self.written) = (room, self.written + taken);
        self.file.write_all(&[kind])?;
        self.file.write_all(&len.to_le_bytes())?;
        content.iter().try_for_each(|part| self.file.write_all(part))?;
        Ok(true)
    }

    /// Writes the end. What was written is believed from then on. Returns how many bytes that is, from the start of the file.
    ///
    /// # Errors
    /// The file takes no more.
    pub fn end(mut self) -> io::Result<u64> {
        self.room = RECORD as u64;
        self.record(END, &[])?;
        self.file.flush()?;
        Ok(self.written)
    }
}

/// Connections of a port that have come from another data plane.
#[derive(Debug)]
pub struct Arrived {
    pub(crate) carried: Carried,
    /// How far the clock of their engine is behind the host's, in nanoseconds, modulo 2^64: it is ahead if the guest has come from a host that has been up for longer.
    behind: u64,
}

impl Arrived {
    /// By how many nanoseconds the engine's clock has to be ahead of a switch's, which says `now`; negative if it is behind.
    pub(crate) fn ahead(&self, now: Instant) -> i64 {
        let at = monotonic().wrapping_sub(self.behind);
        at.wrapping_sub(now.as_nanos()).cast_signed()
    }
}

/// Reads connections that another data plane has left in `file`, of `bytes`: by the instances of ports.
///
/// # Errors
/// They are not to be believed.
pub fn read(file: OwnedFd, bytes: u64) -> io::Result<BTreeMap<u64, Arrived>> {
    Reader::of(file, bytes).read()
}

/// A file from its beginning, wherever its position is: the process that wrote it shares that.
struct FromStart {
    file: File,
    at: u64,
}

impl Read for FromStart {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(bytes, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Connections of a port whose guest has moved here.
#[derive(Debug)]
pub struct Moved {
    pub(crate) carried: Carried,
    /// The time of their engine.
    pub(crate) at: Instant,
    /// What the guest wants to find in notices; zero if it has not said so.
    pub(crate) nonce: u64,
}

/// Reads what a guest has moved with, which another host has written, from `file`, of `bytes`.
///
/// # Errors
/// It is not to be believed, or a record cannot be read.
pub fn read_moved(file: OwnedFd, bytes: u64) -> io::Result<Moved> {
    Reader::of(file, bytes).read_moved()
}

struct Reader {
    file: BufReader<FromStart>,
    at: u64,
    end: u64,
}

fn wrong(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem.into())
}

/// The time `at` of an engine.
fn checked_time(at: u64) -> io::Result<Instant> {
    if at < LATEST {
        Ok(Instant::from_nanos(at))
    } else {
        Err(wrong("an engine's time is out of range"))
    }
}

impl Reader {
    fn of(file: OwnedFd, bytes: u64) -> Self {
        let file = BufReader::with_capacity(CHUNK, FromStart { file: File::from(file), at: 0 });
        Self { file, at: 0, end: bytes }
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let end = self.at + len as u64;
        if end > self.end {
            return Err(wrong("a record is longer than the file"));
        }
        let mut bytes = vec![0; len];
        self.file.read_exact(&mut bytes)?;
        self.at = end;
        Ok(bytes)
    }

    fn take_number(&mut self) -> io::Result<u64> {
        let bytes = self.take(size_of::<u64>())?;
        Ok(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn take_head(&mut self) -> io::Result<()> {
        if self.take(MAGIC.len())? != MAGIC {
            return Err(wrong("nothing was handed over"));
        }
        match self.take_number()? {
            format if format == u64::from(FORMAT) => Ok(()),
            format => Err(wrong(format!("format {format} instead of {FORMAT}"))),
        }
    }

    fn read(mut self) -> io::Result<BTreeMap<u64, Arrived>> {
        self.take_head()?;
        let mut ports = BTreeMap::new();
        let mut open: Option<(u64, Arrived)> = None;
        loop {
            let (kind, len) = self.take_record()?;
            match (kind, &mut open) {
                (PORT, _) => ports.extend(open.replace(self.take_port(len)?)),
                (CONNECTION, Some((_, arrived))) => {
                    let record = self.take(len)?;
                    arrived.carried.add(&record);
                }
                (END, _) => break,
                (kind, _) => return Err(wrong(format!("a record of kind {kind}"))),
            }
        }
        ports.extend(open);
        Ok(ports)
    }

    fn take_port(&mut self, len: usize) -> io::Result<(u64, Arrived)> {
        let ([instance, behind], carried) = self.take_port_record(len)?;
        checked_time(monotonic().wrapping_sub(behind))?;
        Ok((instance, Arrived { carried, behind }))
    }

    /// The two numbers that a port's record begins with, and core's.
    fn take_port_record(&mut self, len: usize) -> io::Result<([u64; 2], Carried)> {
        let rest = len.checked_sub(PORT_HEAD).ok_or_else(|| wrong("a short record of a port"))?;
        let head = [self.take_number()?, self.take_number()?];
        let carried = Carried::of_port(&self.take(rest)?).map_err(|e| wrong(e.to_string()))?;
        Ok((head, carried))
    }

    /// Kind and length of the next record.
    fn take_record(&mut self) -> io::Result<(u8, usize)> {
        let head = self.take(RECORD)?;
        let len = head[1..].iter().rev().fold(0, |len, &byte| len << 8 | usize::from(byte));
        Ok((head[0], len))
    }

    fn read_moved(mut self) -> io::Result<Moved> {
        self.take_head()?;
        let (MOVED, len) = self.take_record()? else { return Err(wrong("no guest has moved")) };
        let ([at, nonce], mut carried) = self.take_port_record(len)?;
        loop {
            match self.take_record()? {
                (CONNECTION, len) => carried.add(&self.take(len)?),
                (END, _) if carried.is_readable() => break,
                (END, _) => return Err(wrong("a connection cannot be read")),
                (kind, _) => return Err(wrong(format!("a record of kind {kind}"))),
            }
        }
        Ok(Moved { carried, at: checked_time(at)?, nonce })
    }
}

#[cfg(test)]
mod tests {
    use floodway_core::l2::SourcePolicy;
    use floodway_core::offload::{Config, Offload};
    use rustix::fs::SealFlags;

    use super::super::WORD;
    use super::super::tests::memory;
    use super::*;
    use crate::frame::held::Held;
    use crate::state::offload::{Nowhere, PortOffload};

    const WORDS: usize = 64;
    const BYTES: u64 = (WORDS * WORD) as u64;

    /// A file in which two ports without connections are written, with room for `bytes`.
    fn written(bytes: u64, ends: bool) -> File {
        let file = memory(WORDS, SealFlags::SHRINK.union(SealFlags::GROW));
        let mut flows = FlowsWriter::begin(file.try_clone().unwrap(), bytes).unwrap();
        let port = PortOffload::new(Config::default());
        for instance in [7, 9] {
            port.hand_over(instance, Instant::from_millis(5), &mut flows).unwrap();
        }
        if ends {
            assert!(flows.end().unwrap() <= bytes.max((HEAD + RECORD) as u64));
        }
        file.into()
    }

    fn instances(file: &File) -> io::Result<Vec<u64>> {
        let file = file.try_clone().unwrap();
        read(file.into(), BYTES).map(|ports| ports.into_keys().collect())
    }

    #[test]
    fn what_was_written_is_read_and_clocks_go_on() {
        let file = written(BYTES, true);
        assert_eq!(instances(&file).unwrap(), [7, 9]);
        let ports = read(file.into(), BYTES).unwrap();
        assert_goes_on(ports[&7].ahead(Instant::ZERO), 5_000_000);
    }

    /// A clock that was at `at` goes on, and was read within a minute.
    #[track_caller]
    fn assert_goes_on(ahead: i64, at: i64) {
        assert!((at..at + 60_000_000_000).contains(&ahead), "{ahead} after {at}");
    }

    #[test]
    fn a_clock_of_another_host_goes_on() {
        let days = 24 * 3600 * 1_000_000_000;
        let up = monotonic();
        for (at, now) in
            [(up + 9 * days, 0), (up + 9 * days, days), (1, 9 * days), (LATEST - days, 0)]
        {
            let (file, bytes) = left(at);
            let port = PortOffload::new(Config::default());
            port.take_in(read_moved(file.into(), bytes).unwrap(), &SourcePolicy::default());
            let file = File::from(memory(WORDS, SealFlags::SHRINK));
            let mut flows = FlowsWriter::begin(file.try_clone().unwrap().into(), BYTES).unwrap();
            // Its switch says zero then.
            port.hand_over(7, Instant::ZERO, &mut flows).unwrap();
            flows.end().unwrap();
            let ports = read(file.into(), BYTES).unwrap();
            let ahead = ports[&7].ahead(Instant::from_nanos(now));
            assert_goes_on(ahead, at.cast_signed() - now.cast_signed());
        }
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let one = HEAD as u64 + 2 * RECORD as u64 + 40;
        assert_eq!(instances(&written(one, true)).unwrap(), [7]);
        assert!(instances(&written(0, true)).unwrap().is_empty());
    }

    /// A file in which a port without connections is written whose guest moves at `at`, and how much of it that is.
    fn left(at: u64) -> (File, u64) {
        let file = memory(WORDS, SealFlags::SHRINK);
        let mut flows = FlowsWriter::begin(file.try_clone().unwrap(), BYTES).unwrap();
        let engine = Offload::<Held>::new(Config::default(), 1);
        let put = |put: &mut dyn FnMut(&[u8]) -> bool| assert!(engine.export(&Nowhere, put));
        flows.moved(Instant::from_nanos(at), 9, put).unwrap();
        (file.into(), flows.end().unwrap())
    }

    #[test]
    fn what_a_guest_has_moved_with_is_read_and_nothing_else_is() {
        let (file, bytes) = left(5_000_000);
        let read = |bytes| read_moved(file.try_clone().unwrap().into(), bytes);
        let moved = read(bytes).unwrap();
        assert_eq!((moved.at, moved.nonce), (Instant::from_millis(5), 9));
        assert!(read(bytes - 1).is_err(), "it has no end");
        assert!(read_moved(written(BYTES, true).into(), BYTES).is_err(), "an upgrade's");
        assert!(instances(&file).is_err(), "a move's");
        for (at, byte) in [(0, b'x'), (8, FORMAT as u8 + 1), (HEAD, 9), (HEAD + 4, 0xff)] {
            let (file, bytes) = left(5_000_000);
            file.write_all_at(&[byte], at as u64).unwrap();
            assert!(read_moved(file.into(), bytes).is_err(), "{at}");
        }
        for at in [LATEST, 1 << 63, u64::MAX] {
            let (file, bytes) = left(at);
            assert!(read_moved(file.into(), bytes).is_err(), "{at} is no time");
        }
        // A connection that cannot be read: another one may owe what it did.
        let (file, bytes) = left(5_000_000);
        let wrong = [CONNECTION, 1, 0, 0, 0, 0xff, END, 0, 0, 0, 0];
        file.write_all_at(&wrong, bytes - RECORD as u64).unwrap();
        assert!(read_moved(file.into(), bytes + wrong.len() as u64).is_err());
    }

    #[test]
    fn what_has_no_end_or_is_damaged_is_not_believed() {
        assert!(instances(&written(BYTES, false)).is_err());
        assert!(instances(&File::from(memory(WORDS, SealFlags::SHRINK))).is_err());
        for (at, byte) in [(0, b'x'), (8, FORMAT as u8 + 1), (HEAD, 9), (HEAD + 4, 0xff)] {
            let file = memory(WORDS, SealFlags::SHRINK);
            let mut bytes = vec![0; BYTES as usize];
            written(BYTES, true).read_exact_at(&mut bytes, 0).unwrap();
            bytes[at] = byte;
            let file = File::from(file);
            file.write_all_at(&bytes, 0).unwrap();
            assert!(instances(&file).is_err(), "{at}");
        }
    }
}
