//! The loop of a path: devices on one side, the model on the other, the clock between them.
//!
//! # Theory of operation
//! One thread. A turn reads what has arrived (a bounded number of frames per device), gives it to
//! the model with the time of now, and hands to the devices what the model says is due. When a
//! turn found nothing to do, the thread sleeps until a descriptor is readable or until `spin_us`
//! before the next packet is due, whichever is first; the rest of the time it spins, that is, it
//! takes further turns. Sleeping is `ppoll` with a timer slack of 1 ns.
//!
//! The control socket is looked at when the thread has slept, and at least every `CONTROL_EVERY`.
//! SIGUSR1 prints the counters as one line of JSON, SIGINT and SIGTERM end the loop.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floodway_core::time::Instant;

use super::control::{Answer, Change, Request, Server};
use super::device::Device;
use super::frame::{Frame, Pool};
use super::intake;
use super::model::Fabric;
use super::report::{Counters, PortCounters};
use super::spec::{Side, Spec};
use super::timing::Recorder;

/// Packets that are taken from one device before others have their turn; the GSO packet in which
/// the last of them comes is cut to its end.
const RECEIVE_BATCH: usize = 64;
/// Packets that are handed to one device before others have their turn.
const SEND_BATCH: usize = 64;
/// Longest sleep, so that a signal that came just before is seen.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);
/// A busy thread looks at its control socket this often.
const CONTROL_EVERY: Duration = Duration::from_millis(1);

/// Requests from outside, set by signal handlers.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    /// The loop is to end.
    pub stop: Arc<AtomicBool>,
    /// Counters are to be printed.
    pub print: Arc<AtomicBool>,
}

/// A running path.
pub struct Engine {
    spec: Spec,
    devices: Vec<Device>,
    fabric: Fabric<Frame>,
    pool: Pool,
    control: Option<Server>,
    signals: Signals,
    clock: Clock,
    spin: Duration,
    lateness: Recorder,
    absence: Recorder,
    /// When the devices were last looked at, or the end of the sleep after that.
    present: Instant,
    controlled: Instant,
}

/// Nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
struct Clock(std::time::Instant);

impl Clock {
    fn now(self) -> Instant {
        Instant::ZERO + self.0.elapsed()
    }
}

impl Engine {
    /// Opens the devices and the control socket.
    ///
    /// # Errors
    /// When the description makes no sense, or something cannot be opened.
    pub fn open(spec: Spec, control: Option<&std::path::Path>, signals: Signals) -> Result<Self> {
        spec.check()?;
        let fabric = Fabric::new(spec.forwarding(), spec.port_configs()?, spec.seed);
        let devices = spec.port.iter().map(Device::open).collect::<Result<_>>()?;
        Ok(Self {
            devices,
            fabric,
            pool: Pool::default(),
            control: control.map(Server::listen).transpose()?,
            signals,
            clock: Clock(std::time::Instant::now()),
            spin: Duration::from_micros(spec.spin_us.into()),
            lateness: Recorder::new()?,
            absence: Recorder::new()?,
            present: Instant::ZERO,
            controlled: Instant::ZERO,
            spec,
        })
    }

    /// Runs until it is told to stop.
    ///
    /// # Errors
    /// When a device fails.
    pub fn run(&mut self) -> Result<()> {
        self.present = self.clock.now();
        while !self.signals.stop.load(Relaxed) {
            if self.signals.print.swap(false, Relaxed) {
                println!("{}", serde_json::to_string(&self.counters())?);
            }
            let busy = self.turn()?;
            if !busy {
                self.sleep()?;
            }
            let now = self.clock.now();
            if now.since(self.controlled) >= CONTROL_EVERY {
                self.serve();
                self.controlled = self.clock.now();
            }
        }
        Ok(())
    }

    /// Everything that is counted.
    pub fn counters(&mut self) -> Counters {
        let Self { fabric, devices, spec, .. } = self;
        let port = |(number, device): (usize, &mut Device)| PortCounters {
            name: spec.port.get(number).map(|port| port.name.clone()).unwrap_or_default(),
            device: device.counters(),
            ingress: fabric.ingress(number),
            egress: fabric.egress(number).unwrap_or_default(),
        };
        let ports = devices.iter_mut().enumerate().map(port).collect();
        Counters {
            uptime_s: self.clock.0.elapsed().as_secs_f64(),
            fabric: self.fabric.counters(),
            ports,
            lateness: self.lateness.distribution(),
            absence: self.absence.distribution(),
        }
    }

    /// One turn; says whether there was anything to do.
    fn turn(&mut self) -> Result<bool> {
        let now = self.clock.now();
        self.absence.add(now.since(self.present));
        self.present = now;
        let mut busy = false;
        for port in 0..self.devices.len() {
            busy |= self.receive(port)?;
            busy |= self.send_due();
        }
        Ok(busy)
    }

    fn receive(&mut self, port: usize) -> Result<bool> {
        let Self { devices, fabric, pool, clock, .. } = self;
        let Some(device) = devices.get_mut(port) else { return Ok(false) };
        let (mut frames, mut taken) = (0, 0);
        while frames.max(taken) < RECEIVE_BATCH {
            let Some(received) = device.receive()? else { break };
            let now = clock.now();
            let usable = intake::packets(&received.vnet, received.frame, pool, |packet| {
                taken += 1;
                fabric.arrive(port, packet, now);
            });
            if !usable {
                device.count_unusable();
            }
            frames += 1;
        }
        Ok(frames > 0)
    }

    /// Hands over what is due, in turn over the ports; says whether anything was.
    fn send_due(&mut self) -> bool {
        let mut now = self.clock.now();
        self.fabric.run(now);
        let mut busy = false;
        for (port, device) in self.devices.iter_mut().enumerate() {
            for _ in 0..SEND_BATCH {
                let Some((packet, due)) = self.fabric.take_due(port, now) else { break };
                device.send(packet.bytes());
                self.lateness.add(now.since(due));
                now = self.clock.now();
                busy = true;
            }
        }
        busy
    }

    fn sleep(&mut self) -> Result<()> {
        let now = self.clock.now();
        let left = self.fabric.next_event().since(now);
        if left <= self.spin {
            return Ok(());
        }
        let control = self.control.iter().flat_map(Server::fds);
        let fds: Vec<RawFd> = self.devices.iter().map(Device::fd).chain(control).collect();
        wait(&fds, (left - self.spin).min(LONGEST_SLEEP)).context("ppoll")?;
        self.absence.add(now.since(self.present));
        self.present = self.clock.now();
        Ok(())
    }

    fn serve(&mut self) {
        let Some(mut control) = self.control.take() else { return };
        control.serve(|request| self.answer(request));
        self.control = Some(control);
    }

    fn answer(&mut self, request: Request) -> Answer {
        match request {
            Request::Get(_) => Answer::Counters(Box::new(self.counters())),
            Request::Reset(_) => {
                self.fabric.reset_high_water();
                self.lateness.reset();
                self.absence.reset();
                Answer::Done(true)
            }
            Request::Set(change) => match self.change(&change) {
                Ok(()) => Answer::Done(true),
                Err(error) => Answer::Error(format!("{error:#}")),
            },
        }
    }

    fn change(&mut self, change: &Change) -> Result<()> {
        let name = &change.port;
        let number = self.spec.port.iter().position(|port| port.name == *name);
        let number = number.with_context(|| format!("no port is called {name}"))?;
        let config = change.link.config()?;
        let now = self.clock.now();
        match change.side {
            Side::Egress => self.fabric.configure_egress(number, config, now),
            Side::Ingress => ensure!(
                self.fabric.configure_ingress(number, config, now),
                "port {name} was started without an ingress link"
            ),
        }
        Ok(())
    }
}

/// Waits until a descriptor is readable, a signal comes, or `time` is over.
fn wait(fds: &[RawFd], time: Duration) -> std::io::Result<()> {
    let mut list: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let time = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos().into(),
    };
    // SAFETY: list and time are valid during the call; no signal mask is given.
    let n = unsafe {
        libc::ppoll(list.as_mut_ptr(), list.len() as _, &raw const time, std::ptr::null())
    };
    let error = std::io::Error::last_os_error();
    if n < 0 && error.kind() != std::io::ErrorKind::Interrupted {
        return Err(error);
    }
    Ok(())
}
