//! Threads of processes (proc(5)).

use std::fs;
use std::io;

/// A thread, told from a later one of the same number by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its number.
    pub id: i32,
    /// Clock ticks after boot at which it started.
    started: u64,
}

impl Thread {
    /// The thread that has this number now; `None` if there is none.
    #[must_use]
    pub fn find(id: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name, in parentheses, may hold anything. Behind it, start time is field 22, the 20th.
        let (_, behind) = stat.rsplit_once(')')?;
        let started = behind.split_whitespace().nth(19)?.parse().ok()?;
        Some(Self { id, started })
    }

    /// It still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Self::find(self.id).as_ref() == Some(self)
    }
}

/// The vCPU threads of the QEMU process `pid`: those that it calls "CPU 0/KVM" or "CPU 0/TCG" and so on.
///
/// # Errors
/// There is no such process, or it names no thread so.
pub fn vcpus_of(pid: u32) -> io::Result<Vec<i32>> {
    let mut vcpus = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if is_vcpu(name.trim_end()) {
            vcpus.extend(entry.file_name().to_str().and_then(|id| id.parse::<i32>().ok()));
        }
    }
    if vcpus.is_empty() {
        let problem = format!(
            "process {pid} names no thread like \"CPU 0/KVM\"; start QEMU with -name VM,debug-threads=on, or \
             give its qmp socket instead of the pid"
        );
        return Err(io::Error::new(io::ErrorKind::NotFound, problem));
    }
    vcpus.sort_unstable();
    Ok(vcpus)
}

fn is_vcpu(name: &str) -> bool {
    let number = name.strip_prefix("CPU ").and_then(|rest| rest.split_once('/'));
    number.is_some_and(|(number, _)| number.parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn names_of_vcpus() {
        assert!(["CPU 0/KVM", "CPU 11/TCG"].iter().all(|name| is_vcpu(name)));
        for other in ["", "CPU", "CPU 0", "CPU x/KVM", "qemu-system-x86", "IO mon_iothread"] {
            assert!(!is_vcpu(other), "{other}");
        }
    }

    #[test]
    fn vcpus_are_found_by_name_and_are_alive_until_they_end() {
        let (end, wait) = mpsc::channel::<()>();
        let (say, hear) = mpsc::channel();
        let vcpu = thread::Builder::new()
            .name("CPU 3/KVM".into())
            .spawn(move || {
                // SAFETY: gettid takes no arguments and cannot fail.
                say.send(unsafe { libc::gettid() }).unwrap();
                let _ = wait.recv();
            })
            .unwrap();
        let id = hear.recv().unwrap();
        assert!(vcpus_of(std::process::id()).unwrap().contains(&id));
        let thread = Thread::find(id).unwrap();
        assert!(thread.is_alive());
        let other = Thread { started: thread.started + 1, ..thread };
        assert!(!other.is_alive(), "another thread of the same number");
        drop(end);
        vcpu.join().unwrap();
        crate::testing::wait_until("the thread's end", || !thread.is_alive());
        assert!(vcpus_of(u32::MAX).is_err());
    }
}
