//! What executes the guests' instructions: the processor itself (KVM), or QEMU's emulation (TCG).
//!
//! # Theory of operation
//!
//! `/dev/kvm` may be there and of no use: inside of some virtual machines it runs only kernels that were made for it, and a stock one
//! stands still before its first line. So a try decides. The guests' own kernel boots with KVM and without a root file system; it panics
//! for lack of that and resets the machine, at which QEMU ends. One that has not come that far after [`PATIENCE`] is killed. What was found is kept in
//! the cache until the host boots again, or has another QEMU or guest kernel.
//!
//! The choice is the process's: that of [`choose`], else that of `$FLOODWAY_LAB_ACCEL`, else `auto`.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::child::Process;
use crate::kernel::Kernel;
use crate::process::{self, lock};
use crate::{cache, cleanup};

/// Chooses where [`choose`] does not: `auto`, `kvm` or `tcg`.
pub const VARIABLE: &str = "FLOODWAY_LAB_ACCEL";
/// The emulator's program, also of those that it does not emulate.
pub(crate) const QEMU: &str = "qemu-system-x86_64";
const DEVICE: &str = "/dev/kvm";
/// How long a kernel may take until it panics. Emulation takes 2 to 5 s, hardware a fraction of that.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a kernel says that has started and found no root file system.
const PANIC: &str = "Kernel panic - not syncing";

static CHOICE: OnceLock<Choice> = OnceLock::new();
static USED: Mutex<Option<Accelerator>> = Mutex::new(None);

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// KVM if a stock kernel boots with it, else emulation.
    #[default]
    Auto,
    /// KVM, or an error that says why not.
    Kvm,
    /// Emulation.
    Tcg,
}

/// What VMs run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// KVM; emulation otherwise.
    pub is_kvm: bool,
    /// Why it is that one.
    pub reason: String,
}

impl Accelerator {
    /// QEMU's name of it.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if self.is_kvm { "kvm" } else { "tcg" }
    }

    /// The value of QEMU's `-accel`.
    pub(crate) fn argument(&self) -> &'static str {
        if self.is_kvm { "kvm" } else { "tcg,thread=multi" }
    }
}

/// Chooses for this process, before its first VM. A second choice is ignored.
pub fn choose(choice: Choice) {
    let _ = CHOICE.set(choice);
}

/// What VMs of this process have run with; `None` before the first.
#[must_use]
pub fn used() -> Option<Accelerator> {
    lock(&USED).clone()
}

/// What VMs of this process run with. Finds it out at the first call, which may take [`PATIENCE`].
///
/// # Errors
/// When KVM was chosen and does not work, or the variable names no accelerator.
pub fn of_process(kernel: &Kernel) -> Result<Accelerator> {
    let mut used = lock(&USED);
    if let Some(known) = &*used {
        return Ok(known.clone());
    }
    let accelerator = resolve(chosen()?, || remembered(kernel))?;
    eprintln!("VMs run with {}: {}", accelerator.name(), accelerator.reason);
    *used = Some(accelerator.clone());
    Ok(accelerator)
}

fn chosen() -> Result<Choice> {
    match (CHOICE.get(), std::env::var(VARIABLE)) {
        (Some(choice), _) => Ok(*choice),
        (None, Ok(text)) => Choice::from_str(&text, false)
            .map_err(|_| anyhow!("{VARIABLE}={text}: must be auto, kvm or tcg")),
        (None, Err(_)) => Ok(Choice::Auto),
    }
}

/// `problem` finds out what keeps KVM from working.
fn resolve(
    choice: Choice,
    problem: impl FnOnce() -> Result<Option<String>>,
) -> Result<Accelerator> {
    if choice == Choice::Tcg {
        return Ok(Accelerator { is_kvm: false, reason: "it was asked for".into() });
    }
    match (problem()?, choice) {
        (None, _) => {
            Ok(Accelerator { is_kvm: true, reason: "a stock kernel boots with it".into() })
        }
        (Some(problem), Choice::Kvm) => {
            bail!("accel kvm: {problem}; choose auto or tcg, which emulates")
        }
        (Some(reason), _) => Ok(Accelerator { is_kvm: false, reason }),
    }
}

/// A finding in the cache.
#[derive(Serialize, Deserialize)]
struct Finding {
    /// The host's boot, QEMU and the guests' kernel.
    of: [String; 3],
    problem: Option<String>,
}

/// What keeps KVM from working, from the cache if it was found out before.
fn remembered(kernel: &Kernel) -> Result<Option<String>> {
    if let Err(error) = File::options().read(true).write(true).open(DEVICE) {
        return Ok(Some(format!("{DEVICE}: {error}")));
    }
    let dir = cache::make("accel")?;
    let _lock = cache::lock(&dir)?;
    let path = dir.join("kvm.json");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let of = [boot, process::run(&[QEMU, "--version"])?, kernel.release.clone()];
    let known = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if let Some(Finding { of: then, problem }) = known
        && then == of
    {
        return Ok(problem);
    }
    let problem = Trial { qemu: &[QEMU], patience: PATIENCE }.run(&kernel.vmlinuz)?;
    let finding = Finding { of, problem };
    fs::write(&path, serde_json::to_vec(&finding)?)
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(finding.problem)
}

/// The boot of a kernel with KVM.
struct Trial<'a> {
    /// QEMU's program, and words that come before its options.
    qemu: &'a [&'a str],
    patience: Duration,
}

impl Trial<'_> {
    /// Boots a kernel. Returns what is wrong; `None` if it starts.
    fn run(&self, vmlinuz: &Path) -> Result<Option<String>> {
        let dir = cleanup::run_dir()?.join("accel");
        fs::create_dir_all(&dir)?;
        let console = dir.join("console.log");
        fs::write(&console, "")?;
        let messages = File::create(dir.join("qemu.log"))?;
        let (program, words) = self.qemu.split_first().context("no program")?;
        let mut command = Command::new(program);
        command.args(words);
        command.args("-nodefaults -no-user-config -no-reboot -display none -m 256".split(' '));
        command.args(["-accel", "kvm", "-cpu", "max"]).arg("-kernel").arg(vmlinuz);
        command.args(["-append", "console=ttyS0 panic=-1 no_timer_check"]);
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.stdin(Stdio::null()).stdout(messages.try_clone()?).stderr(messages);
        let qemu = Process::spawn("KVM trial", command)?;
        let ended = qemu.wait(self.patience);
        qemu.kill()?;
        Ok(match ended {
            Err(_) => Some(format!(
                "{DEVICE}: a stock kernel has not started within {} s",
                self.patience.as_secs()
            )),
            Ok(_) if read(&console).contains(PANIC) => None,
            Ok(status) => {
                let messages = read(&dir.join("qemu.log"));
                let last = messages.lines().last().unwrap_or_default();
                Some(format!("{DEVICE}: QEMU ended ({status}) {last}"))
            }
        })
    }
}

fn read(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a trial makes of a shell script in QEMU's place, which knows its console as `$console`.
    fn outcome(script: &str, patience: Duration) -> Option<String> {
        let script = format!("for console; do :; done; console=${{console#file:}}; {script}");
        let trial = Trial { qemu: &["sh", "-c", &script, "qemu"], patience };
        trial.run(Path::new("/vmlinuz")).unwrap()
    }

    #[test]
    fn a_kernel_has_to_start_for_kvm_to_work() {
        let long = Duration::from_secs(300);
        let starts = "echo 'Kernel panic - not syncing: VFS' >\"$console\"";
        assert_eq!(outcome(starts, long), None);
        let refused = outcome("echo 'failed to initialize kvm' >&2; exit 1", long).unwrap();
        assert!(refused.ends_with("failed to initialize kvm"), "{refused}");
        let still = outcome("exec sleep 100000", Duration::from_millis(200)).unwrap();
        assert!(still.contains("not started within"), "{still}");
        assert!(outcome(":", long).is_some(), "one that says nothing has not started");
    }

    #[test]
    fn the_choice_decides_what_a_problem_means() {
        let broken = || Ok(Some("it hangs".to_owned()));
        let auto = resolve(Choice::Auto, broken).unwrap();
        assert_eq!((auto.name(), &*auto.reason), ("tcg", "it hangs"));
        assert!(resolve(Choice::Kvm, broken).unwrap_err().to_string().contains("it hangs"));
        assert_eq!(resolve(Choice::Auto, || Ok(None)).unwrap().name(), "kvm");
        let tcg = resolve(Choice::Tcg, || panic!("nobody asked")).unwrap();
        assert_eq!(tcg.argument(), "tcg,thread=multi");
    }
}
