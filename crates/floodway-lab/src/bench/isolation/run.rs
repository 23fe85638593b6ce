//! One attack on one switch: slices in turns.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use floodway_switch::testing::memory::Pages;
use floodway_switch::uplink::packet;

use super::Case;
use super::attack::{self, Attack};
use super::kind::{Kind, Uplink};
use super::slices::{Load, Slice};
use super::testbed::{self, FAR_DEVICE, Testbed};
use super::victim::{Far, PARTNER, Partner, VICTIM, Victims};
use super::vm::Spec;
use crate::bench::Args;
use crate::bench::case::Profile;
use crate::bench::peer::{PeerKind, Setup};
use crate::{cleanup, vcpu};

/// Before each slice its load and the attack run for so long without being measured.
const SETTLE: Duration = Duration::from_millis(10);
/// How long the switch may take to get through what a paused attacker has left.
const REST: Duration = Duration::from_secs(1);
/// Quiet between slices.
const QUIET: Duration = Duration::from_millis(3);
/// How long the victims may take until they exchange frames at all.
const MEETING: Duration = Duration::from_secs(15);
/// Part of the requests that must be answered then.
const MET: f64 = 0.9 * 10_000.0;
/// Calm slices in a row without a frame after which the switch counts as dead.
const SILENT: usize = 4;

/// Measures an attack.
///
/// # Errors
/// When the switch does not start, or does not take its VMs.
pub fn case(args: &Args, peer: PeerKind, attack: Kind) -> Result<Case> {
    let dir = cleanup::run_dir()?.join(format!("{peer}-isolation"));
    testbed::fresh(&dir)?;
    let setup = Setup::new(&dir, args.switch_core, Profile::Standard);
    let bed = Testbed::start(peer, attack, &setup)?;
    let outcome = bed.within(|| {
        vcpu::pin(0, &[args.client_core])?;
        Run::new(args, &bed, attack)?.play()
    });
    let log = bed.switch.log_tail();
    let (slices, ended) = outcome.with_context(|| format!("log of {peer}:\n{log}"))?;
    Ok(Case { peer, attack, slices, ended })
}

/// What the victims' memory is made of.
pub fn pages(args: &Args) -> Pages {
    if args.small_pages { Pages::Small } else { Pages::Huge }
}

/// A run in progress.
struct Run<'a> {
    args: &'a Args,
    bed: &'a Testbed,
    victims: Victims,
    attack: Box<dyn Attack + 'a>,
    slices: Vec<Slice>,
}

impl<'a> Run<'a> {
    fn new(args: &'a Args, bed: &'a Testbed, attack: Kind) -> Result<Self> {
        let spec = Spec::victim(pages(args));
        let victim = bed.boot(VICTIM, &spec)?;
        let partner = match attack.uplink() {
            Uplink::Between { .. } => {
                let (receiver, sender) = packet::open(FAR_DEVICE)?;
                Partner::Far(Box::new(Far { receiver, sender }))
            }
            _ => Partner::Vm(Box::new(bed.boot(PARTNER, &spec)?)),
        };
        let victims = Victims::new(victim, partner);
        let attack = attack::stage(attack, bed)?;
        Ok(Self { args, bed, victims, attack, slices: Vec::new() })
    }

    /// All slices, and why there are no more if there should be.
    fn play(mut self) -> Result<(Vec<Slice>, Option<String>)> {
        self.meet()?;
        for round in 0..self.args.slices() {
            for load in Load::ALL {
                // Neither always goes first.
                for attacked in [round % 2 == 1, round % 2 == 0] {
                    let result = self.slice(load, attacked);
                    if let Some(ended) = self.ended(&result)? {
                        return Ok((self.slices, Some(ended)));
                    }
                    result?;
                }
            }
        }
        Ok((self.slices, None))
    }

    /// Lets the switch learn where the victims are.
    fn meet(&mut self) -> Result<()> {
        let deadline = Instant::now() + MEETING;
        loop {
            let measured = self.victims.measure(Load::RoundTrips, SETTLE, &mut || Ok(()))?;
            if measured.rate >= MET {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the victims do not reach each other");
        }
    }

    fn slice(&mut self, load: Load, attacked: bool) -> Result<()> {
        let time = Duration::from_millis(self.args.slice_ms.into());
        if attacked {
            self.attack.resume()?;
        }
        self.measure(load, attacked, SETTLE)?;
        let before = self.bed.charged()?;
        let measured = self.measure(load, attacked, time)?;
        let after = self.bed.charged()?;
        let charged = before.zip(after).map(|([a, b], [c, d])| [c - a, d - b]);
        self.slices.push(Slice::new(load, attacked, &measured, charged));
        self.rest()
    }

    fn measure(
        &mut self,
        load: Load,
        attacked: bool,
        time: Duration,
    ) -> Result<super::slices::Measured> {
        let attack = &mut self.attack;
        let mut turn = || if attacked { attack.attack() } else { attack.calm() };
        self.victims.measure(load, time, &mut turn)
    }

    /// Lets the switch get through what is left, in rings and in queues.
    fn rest(&mut self) -> Result<()> {
        let deadline = Instant::now() + REST;
        let mut is_quiet = false;
        while !is_quiet && Instant::now() < deadline {
            let mut is_idle = false;
            let attack = &mut self.attack;
            let mut turn = || {
                is_idle = attack.rest()?;
                Ok(())
            };
            let arrived = self.victims.idle(QUIET, &mut turn)?;
            is_quiet = is_idle && arrived == 0;
        }
        Ok(())
    }

    /// What has become of the switch, if it does not work any more.
    fn ended(&self, result: &Result<()>) -> Result<Option<String>> {
        let number = self.slices.len();
        if let Some(status) = self.bed.switch.ended()? {
            return Ok(Some(format!("the switch ended ({status}) in slice {number}")));
        }
        if let (Err(error), true) = (result, number > 0) {
            return Ok(Some(format!("after slice {number}: {error:#}")));
        }
        let calm = self.slices.iter().rev().filter(|slice| !slice.attacked);
        let silent = calm.take_while(|slice| slice.rate == 0.0).count();
        Ok((silent >= SILENT).then(|| format!("the switch forwards nothing after slice {number}")))
    }
}
