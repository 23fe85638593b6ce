//! What the data plane gives up before it starts.
//!
//! # Theory of operation
//! **Goal**: a guest that takes the data plane over has what the data plane's descriptors lead to, and nothing else of the host.
//!
//! **Order**, each step needing rights that a later one takes away:
//! 1. *Rights*: bounding and ambient capabilities, groups, user, all other capabilities; no new ones by `execve`; no core dump, no tracing.
//! 2. *Landlock* without a single rule: no path is opened, executed, made or removed; no TCP port; no signal and no abstract socket beyond the
//!    sandbox. What this kernel does not know is left out, and the result is [`Confinement::Partial`].
//! 3. *seccomp*: an allow-list. Anything else fails with `EPERM`: a library that tries something unusual then costs itself one call, and not all
//!    guests their network, which is what a kill would do. `clone3` fails with `ENOSYS`: its flags lie in memory where no filter can look, and
//!    libraries fall back to `clone`, of which only threads pass.
//!
//! **One thread.** User, capabilities and Landlock are properties of a thread. So all of it is done while there is one, and a second one is refused.
//!
//! **Not kept out**: `readlink` and `stat` tell whether paths exist; Landlock does not cover them, and the data plane needs both for descriptors.
//! `sendmsg` on a packet socket may name any interface of the socket's network namespace.
//!
//! **Invariant**: [`enter`] returns `Ok` only if every step was done.
//!
//! Source: `seccomp(2)`, `landlock(7)`, `capabilities(7)`, `PR_SET_NO_NEW_PRIVS`.

use std::collections::BTreeMap;
use std::io;

use landlock::{
    ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::message::Confinement;

/// The newest Landlock that is asked for. An older kernel does what it can.
const LANDLOCK: ABI = ABI::V6;
/// Capabilities that are tried to be dropped: more than there are.
const CAPABILITIES: libc::c_ulong = 64;

/// Who the data plane becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id, its only group.
    pub gid: u32,
}

/// Why a process could not be confined. It must not go on.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Other threads would stay as they are.
    #[error("the process has {0} threads; it can be confined only while it has one")]
    Threads(usize),
    /// Root is not confined.
    #[error("the data plane would run as root; give it a user")]
    Root,
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// Landlock failed, other than by being old.
    #[error("cannot take paths away by Landlock: {0}")]
    Landlock(#[from] RulesetError),
    /// The filter cannot be built.
    #[error("cannot filter system calls: {0}")]
    Filter(String),
}

fn failed<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> SandboxError {
    move |source| SandboxError::System { action, source: source.into() }
}

/// Confines this process for good, as `user` if there is one. Returns how far that went.
///
/// # Errors
/// A step failed; the steps before it stay done.
pub fn enter(user: Option<User>) -> Result<Confinement, SandboxError> {
    require_one_thread()?;
    give_up_rights(user)?;
    let confinement = give_up_paths()?;
    filter_calls()?;
    Ok(confinement)
}

fn require_one_thread() -> Result<(), SandboxError> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(failed("count threads"))?.count();
    if threads == 1 { Ok(()) } else { Err(SandboxError::Threads(threads)) }
}

fn give_up_rights(user: Option<User>) -> Result<(), SandboxError> {
    empty_bounding_set();
    clear_ambient_capability_set().map_err(failed("clear ambient capabilities"))?;
    if let Some(User { uid, gid }) = user {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_groups(&[]).map_err(failed("give up groups"))?;
        set_thread_res_gid(gid, gid, gid).map_err(failed("change the group"))?;
        set_thread_res_uid(uid, uid, uid).map_err(failed("change the user"))?;
    }
    if rustix::process::geteuid().is_root() || rustix::process::getuid().is_root() {
        return Err(SandboxError::Root);
    }
    let none = CapabilitySet::empty();
    let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, none).map_err(failed("give up capabilities"))?;
    set_no_new_privs(true).map_err(failed("refuse new privileges"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("forbid tracing"))
}

/// Takes everything out of the bounding set. Who may not do that has nothing to lose by it: without new privileges the set bounds nothing.
fn empty_bounding_set() {
    for capability in 0..CAPABILITIES {
        // SAFETY: takes plain numbers. Fails for numbers that are no capability.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

fn give_up_paths() -> Result<Confinement, SandboxError> {
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Confinement::Full,
        RulesetStatus::PartiallyEnforced | RulesetStatus::NotEnforced => Confinement::Partial,
    })
}

fn filter_calls() -> Result<(), SandboxError> {
    let unbuilt = |error: seccompiler::BackendError| SandboxError::Filter(error.to_string());
    for filter in [without_clone3().map_err(unbuilt)?, allowed_calls().map_err(unbuilt)?] {
        seccompiler::apply_filter(&filter).map_err(|e| SandboxError::Filter(e.to_string()))?;
    }
    Ok(())
}

type Built<T> = Result<T, seccompiler::BackendError>;
type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn program(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Built<BpfProgram> {
    let arch: TargetArch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, otherwise, matched, arch)?.try_into()
}

/// Of two filters the stricter answer counts; this one's is the only `ENOSYS`.
fn without_clone3() -> Built<BpfProgram> {
    let refused = SeccompAction::Errno(libc::ENOSYS as u32);
    program(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Allow, refused)
}

fn allowed_calls() -> Built<BpfProgram> {
    let mut rules: Rules = ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    rules.extend(conditional_rules()?);
    program(rules, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)
}

/// Calls that are allowed with any arguments.
const ALLOWED: &[i64] = &[
    // Frames, messages, the log, the control socket's clients.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmsg,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_close,
    // Interrupts of guests.
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    // Waiting.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    // Memory; what maps is below.
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    // What a descriptor of a front-end is.
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    // Threads and signals.
    libc::SYS_clone3, // refused by the other filter
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_getrandom,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

fn conditional_rules() -> Built<Rules> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let any_of = |argument, values: &[u64]| {
        let rule = |&value: &u64| SeccompRule::new(vec![condition(argument, Eq, value)?]);
        values.iter().map(rule).collect::<Built<Vec<_>>>()
    };
    let with_bits = |argument, mask, bits| {
        SeccompRule::new(vec![condition(argument, MaskedEq(mask), bits)?]).map(|rule| vec![rule])
    };
    let executable = libc::PROT_EXEC as u64;
    let thread = libc::CLONE_THREAD as u64;
    Ok(BTreeMap::from([
        // Without an address: descriptors are connected.
        (libc::SYS_sendto, vec![SeccompRule::new(vec![null_pointer(4)?])?]),
        (libc::SYS_socketpair, any_of(0, &[libc::AF_UNIX as u64])?),
        (libc::SYS_setsockopt, time_limits()?),
        // Where kept memory has been written.
        (libc::SYS_lseek, any_of(2, &[libc::SEEK_DATA as u64, libc::SEEK_HOLE as u64])?),
        (libc::SYS_ioctl, any_of(1, &[libc::FIONBIO, libc::FIOCLEX, libc::TIOCOUTQ])?),
        (libc::SYS_fcntl, any_of(1, &FCNTL.map(|command| command as u64))?),
        (libc::SYS_mmap, with_bits(2, executable, 0)?),
        (libc::SYS_mprotect, with_bits(2, executable, 0)?),
        (libc::SYS_clone, with_bits(0, thread, thread)?),
        (libc::SYS_prctl, any_of(0, &[libc::PR_SET_NAME as u64, libc::PR_SET_TIMERSLACK as u64])?),
        // A thread that is to leave workers what they need makes itself nicer; nobody is made less nice without a capability.
        (libc::SYS_setpriority, own_priority()?),
        // abort(3), of this process only.
        (libc::SYS_tgkill, any_of(0, &[u64::from(std::process::id())])?),
    ]))
}

/// What `fcntl` may be asked: another number for a descriptor, its flags, and seals of front-ends' files.
const FCNTL: [libc::c_int; 7] = [
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_ADD_SEALS,
    libc::F_GET_SEALS,
];

/// The options of a socket that may be set: how long its calls wait.
fn time_limits() -> Built<Vec<SeccompRule>> {
    let rule = |option: libc::c_int| {
        SeccompRule::new(vec![
            condition(1, SeccompCmpOp::Eq, libc::SOL_SOCKET as u64)?,
            condition(2, SeccompCmpOp::Eq, option as u64)?,
        ])
    };
    [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO].into_iter().map(rule).collect()
}

/// Priorities that may be set: that of the calling thread.
fn own_priority() -> Built<Vec<SeccompRule>> {
    let of_one = condition(0, SeccompCmpOp::Eq, u64::from(libc::PRIO_PROCESS))?;
    Ok(vec![SeccompRule::new(vec![of_one, condition(1, SeccompCmpOp::Eq, 0)?])?])
}

/// The condition of an argument of which the kernel looks at the low 32 bits, or of bits that lie there.
fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Built<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

fn null_pointer(argument: u8) -> Built<SeccompCondition> {
    SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::thread;

    use super::*;

    #[test]
    fn landlock_alone_refuses_paths() {
        // It confines the calling thread only.
        let confined = thread::spawn(|| {
            let before = File::open("/proc/self/status").is_ok();
            give_up_paths().unwrap();
            (before, File::open("/proc/self/status").map(|_| ()))
        });
        let (before, after) = confined.join().unwrap();
        assert!(before);
        assert_eq!(after.unwrap_err().raw_os_error(), Some(libc::EACCES));
        assert!(File::open("/proc/self/status").is_ok(), "this thread is free");
    }

    #[test]
    fn a_list_names_each_call_once() {
        let mut calls = ALLOWED.to_vec();
        calls.extend(conditional_rules().unwrap().keys());
        calls.sort_unstable();
        assert!(calls.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
