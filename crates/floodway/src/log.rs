//! The log, written by a thread of its own.
//!
//! Whoever reads standard error may stop to (a pager, a full pipe of a supervisor), and a write waits for it. No worker may. So
//! lines go into a bounded channel, and one that does not fit is counted and left out; the next line that is written is preceded
//! by how many were.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written.
const LINES: usize = 4096;
/// How long the end of the process waits for lines to be written.
const FLUSH: Duration = Duration::from_millis(500);

/// Where lines go. Each write is one line.
#[derive(Clone)]
pub struct Log {
    lines: SyncSender<Vec<u8>>,
    lost: Arc<AtomicU64>,
}

/// Waits, when dropped, until the lines up to then are written, but not for long.
pub struct Flush {
    log: Log,
    flushed: Receiver<()>,
}

impl Log {
    /// Starts the thread that writes to `output`.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start(output: impl Write + Send + 'static) -> io::Result<(Self, Flush)> {
        let (lines, received) = sync_channel(LINES);
        let (done, flushed) = sync_channel(1);
        let log = Self { lines, lost: Arc::default() };
        let lost = Arc::clone(&log.lost);
        thread::Builder::new().name("log".to_owned()).spawn(move || {
            write_lines(output, &received, &lost);
            // Fails when nobody waits any more.
            let _ = done.send(());
        })?;
        Ok((log.clone(), Flush { log, flushed }))
    }

    fn send(&self, line: Vec<u8>) {
        if self.lines.try_send(line).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.send(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        // An empty line is the end.
        self.log.send(Vec::new());
        let _ = self.flushed.recv_timeout(FLUSH);
    }
}

/// Writes what is received until an empty line.
fn write_lines(mut output: impl Write, received: &Receiver<Vec<u8>>, lost: &AtomicU64) {
    for line in received {
        let lost = lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            // There is nobody to tell if the log cannot be written.
            let _ = writeln!(output, "{lost} log lines left out: they were not read in time");
        }
        if line.is_empty() {
            return;
        }
        let _ = output.write_all(&line);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, pipe};

    use super::*;

    #[test]
    fn a_reader_that_stops_holds_up_nobody_and_hears_what_it_missed() {
        // More than a pipe and the channel hold.
        const SENT: usize = LINES + 1000;
        let (reader, writer) = pipe().unwrap();
        let (mut log, flush) = Log::start(writer).unwrap();
        let line = [&[b'x'; 999][..], b"\n"].concat();
        for _ in 0..SENT {
            log.write_all(&line).unwrap();
        }
        drop(flush);
        let (mut written, mut lost) = (0, 0);
        let mut lines = BufReader::new(reader).lines();
        while written + lost < SENT {
            let line = lines.next().unwrap().unwrap();
            match line.split_once(" log lines left out") {
                Some((number, _)) => lost += number.parse::<usize>().unwrap(),
                None => written += 1,
            }
        }
        assert!(lost > 0, "all of {written} lines found room");
    }

    #[test]
    fn the_end_waits_for_lines_to_be_written() {
        let (reader, writer) = pipe().unwrap();
        let (mut log, flush) = Log::start(writer).unwrap();
        log.write_all(b"one\n").unwrap();
        log.write_all(b"two\n").unwrap();
        drop(flush);
        let lines: Vec<_> = BufReader::new(reader).lines().map(Result::unwrap).collect();
        assert_eq!(lines, ["one", "two"]);
    }
}
