//! `floodway-lab path`: the process itself, and questions to one that runs.

use std::fs;
use std::io::Read;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use floodway_netem::control::{self, Answer, Change, Request, Reset, What};
use floodway_netem::engine::{Engine, Signals};
use floodway_netem::{LinkSpec, Loss, PortSpec, Side, Spec};
use rustix::thread::set_current_timer_slack;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;

use crate::vcpu;

/// Shortest slice that the kernel gives: a thread that wakes up runs soon.
const SLICE: Duration = Duration::from_micros(100);

/// What to do.
#[derive(Subcommand)]
pub enum Action {
    /// Join interfaces by a path or switch until interrupted; SIGUSR1 prints the counters
    Run(Run),
    /// Print the counters of a running path as JSON
    Counters {
        /// Its control socket
        #[arg(long)]
        control: PathBuf,
        /// Afterwards, start high-water marks and timing anew
        #[arg(long)]
        reset: bool,
    },
    /// Change a link of a running path. What is not given gets its default
    Set {
        /// Its control socket
        #[arg(long)]
        control: PathBuf,
        /// Name of the port
        port: String,
        /// Which of its links
        side: LinkSide,
        /// The link as in the file, in TOML: 'rate_mbit = 50' 'loss = 0.01' ...
        link: Vec<String>,
    },
}

/// A link of a port.
#[derive(Clone, Copy, ValueEnum)]
pub enum LinkSide {
    /// From the host.
    Ingress,
    /// To the host.
    Egress,
}

impl From<LinkSide> for Side {
    fn from(side: LinkSide) -> Self {
        match side {
            LinkSide::Ingress => Self::Ingress,
            LinkSide::Egress => Self::Egress,
        }
    }
}

/// Arguments of `path run`.
#[derive(Args)]
pub struct Run {
    /// Description in TOML, - for standard input
    #[arg(required_unless_present = "between", conflicts_with = "between")]
    file: Option<PathBuf>,
    /// Two interfaces to join by equal links, each as [NAMESPACE:]DEVICE
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    between: Option<Vec<String>>,
    #[command(flatten)]
    links: Links,
    /// Unix socket for `counters` and `set`
    #[arg(long)]
    control: Option<PathBuf>,
    /// CPU to run on
    #[arg(long)]
    core: Option<usize>,
    /// Run as a SCHED_RR thread of this priority, whatever the file says
    #[arg(long)]
    realtime_priority: Option<u32>,
    /// Write the counters to this file at the end
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Both links of `--between`.
#[derive(Args)]
struct Links {
    /// Rate of both directions in Mbit/s, Ethernet overhead included
    #[arg(long, requires = "between")]
    rate_mbit: Option<f64>,
    /// Delay of each direction in ms
    #[arg(long, requires = "between", default_value_t = 0.0)]
    delay_ms: f64,
    /// Variation of the delay in ms
    #[arg(long, requires = "between", default_value_t = 0.0)]
    jitter_ms: f64,
    /// Bytes that may wait
    #[arg(long, requires = "between")]
    queue_bytes: Option<u32>,
    /// Bytes waiting from which on ECN-capable packets are marked
    #[arg(long, requires = "between")]
    ecn_bytes: Option<u32>,
    /// Share of packets that vanish, 0 to 1
    #[arg(long, requires = "between")]
    loss: Option<f64>,
    /// Seed of all that is random
    #[arg(long, requires = "between", default_value_t = 1)]
    seed: u64,
}

/// Does it.
///
/// # Errors
/// What went wrong.
pub fn run(action: Action) -> Result<()> {
    match action {
        Action::Run(arguments) => arguments.run(),
        Action::Counters { control, reset } => counters(&control, reset),
        Action::Set { control, port, side, link } => {
            let link = toml::from_str(&link.join("\n")).context("the link")?;
            let change = Change { port, side: side.into(), link };
            control::ask(&control, &Request::Set(Box::new(change))).map(drop)
        }
    }
}

fn counters(control: &std::path::Path, reset: bool) -> Result<()> {
    match control::ask(control, &Request::Get(What::Counters))? {
        Answer::Counters(counters) => println!("{}", serde_json::to_string_pretty(&counters)?),
        other => bail!("the path answered {other:?}"),
    }
    if reset {
        control::ask(control, &Request::Reset(Reset::Marks))?;
    }
    Ok(())
}

impl Run {
    fn run(&self) -> Result<()> {
        let spec = self.spec()?;
        let signals = catch_signals()?;
        schedule(self.core, self.realtime_priority.or(spec.realtime_priority))?;
        let mut engine = Engine::open(spec, self.control.as_deref(), signals)?;
        let outcome = engine.run();
        if let Some(file) = &self.json {
            fs::write(file, serde_json::to_string_pretty(&engine.counters())? + "\n")
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        outcome
    }

    fn spec(&self) -> Result<Spec> {
        if let Some(ends) = &self.between {
            return self.links.join(ends);
        }
        let file = self.file.as_deref().context("neither a file nor --between")?;
        let mut text = String::new();
        let read = if file.as_os_str() == "-" {
            std::io::stdin().read_to_string(&mut text)
        } else {
            fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text))
        };
        read.and(Spec::parse(&text).map_err(std::io::Error::other))
            .with_context(|| file.display().to_string())
    }
}

impl Links {
    fn join(&self, ends: &[String]) -> Result<Spec> {
        let link = LinkSpec {
            rate_mbit: self.rate_mbit,
            delay_ms: self.delay_ms,
            jitter_ms: self.jitter_ms,
            queue_bytes: self.queue_bytes.unwrap_or(LinkSpec::default().queue_bytes),
            ecn_bytes: self.ecn_bytes,
            loss: self.loss.map(Loss::Random),
            ..LinkSpec::default()
        };
        let port = |name: &str, end: &String| {
            let (namespace, device) = match end.rsplit_once(':') {
                Some((namespace, device)) => (Some(namespace), device),
                None => (None, end.as_str()),
            };
            PortSpec { egress: link.clone(), ..PortSpec::packet(name, namespace, device) }
        };
        let [a, b] = ends else { bail!("--between takes two interfaces") };
        let spec = Spec { seed: self.seed, ..Spec::path(port("a", a), port("b", b)) };
        spec.check()?;
        Ok(spec)
    }
}

fn catch_signals() -> Result<Signals> {
    let signals = Signals::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register(signal, signals.stop.clone()).context("cannot catch signals")?;
    }
    flag::register(SIGUSR1, signals.print.clone()).context("cannot catch SIGUSR1")?;
    Ok(signals)
}

/// Makes the kernel run this thread where and when it should.
fn schedule(core: Option<usize>, realtime_priority: Option<u32>) -> Result<()> {
    // 1 ns instead of the default 50 us, so that sleeps end in time.
    let _ = set_current_timer_slack(Some(NonZeroU64::MIN));
    if let Some(core) = core {
        vcpu::pin(0, &[core])?;
    }
    match realtime_priority {
        Some(priority) => vcpu::set_round_robin(0, priority),
        None => {
            // Kernels before 6.12 have no slices of threads: timing is worse, nothing else.
            if let Err(error) = vcpu::set_slice(0, SLICE) {
                eprintln!("floodway-lab path: {error:#}");
            }
            Ok(())
        }
    }
}
