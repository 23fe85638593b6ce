//! System calls of another process, made in its name (ptrace(2)).
//!
//! The process waits in a system call, so the instruction before its instruction pointer is `syscall`. It runs that once more with other registers, alone, and
//! then has its own back; the kernel starts the call over that was interrupted.

use std::io;

/// A process whose main thread is stopped, until this is dropped.
pub struct Tracee {
    pid: libc::pid_t,
    own: libc::user_regs_struct,
    /// Below what the thread uses of its stack.
    free: u64,
}

impl Tracee {
    pub fn attach(process: u64) -> Self {
        let pid = libc::pid_t::try_from(process).unwrap();
        request(libc::PTRACE_ATTACH, pid, 0, 0);
        wait_until_stopped(pid);
        let own = registers(pid);
        let code = request(libc::PTRACE_PEEKTEXT, pid, own.rip - 2, 0).to_ne_bytes();
        assert_eq!(code[..2], [0x0f, 0x05], "it does not wait in a system call");
        // Beyond the red zone of the ABI.
        Self { pid, own, free: own.rsp - 4096 }
    }

    /// Puts `bytes` into its memory; returns where they are.
    pub fn push(&mut self, bytes: &[u8]) -> i64 {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        request(libc::PTRACE_POKEDATA, self.pid, self.free, i64::from_ne_bytes(word));
        self.free.cast_signed()
    }

    /// Makes a system call; returns what the kernel does: a negative error number if it fails.
    pub fn call(&mut self, number: libc::c_long, arguments: [i64; 3]) -> i64 {
        self.begin(number, arguments);
        wait_until_stopped(self.pid);
        registers(self.pid).rax.cast_signed()
    }

    /// Makes a system call that somebody may kill the process for.
    pub fn last_call(self, number: libc::c_long, arguments: [i64; 3]) {
        self.begin(number, arguments);
        let mut status = 0;
        // SAFETY: the kernel writes one number, to where it belongs.
        let stopped = unsafe { libc::waitpid(self.pid, &raw mut status, libc::__WALL) } == self.pid
            && libc::WIFSTOPPED(status);
        if stopped {
            // It may end meanwhile.
            // SAFETY: the kernel reads registers from where they are; a detached process goes on.
            unsafe {
                libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, &raw const self.own);
                libc::ptrace(libc::PTRACE_DETACH, self.pid, 0, 0);
            }
        }
        std::mem::forget(self);
    }

    fn begin(&self, number: libc::c_long, arguments: [i64; 3]) {
        let mut registers = self.own;
        registers.rip -= 2;
        registers.rax = number.cast_unsigned();
        // It was not in a call that could be started over.
        registers.orig_rax = u64::MAX;
        [registers.rdi, registers.rsi, registers.rdx] = arguments.map(i64::cast_unsigned);
        set_registers(self.pid, &registers);
        request(libc::PTRACE_SINGLESTEP, self.pid, 0, 0);
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        set_registers(self.pid, &self.own);
        request(libc::PTRACE_DETACH, self.pid, 0, 0);
    }
}

fn request(request: libc::c_uint, pid: libc::pid_t, address: u64, data: i64) -> i64 {
    // SAFETY: requests that read or write the tracee's memory by value; only a peek returns anything but zero and -1, and none of ours is -1.
    let result = unsafe { libc::ptrace(request, pid, address, data) };
    assert_ne!(
        result,
        -1,
        "this test needs to trace (run it as root): {}",
        io::Error::last_os_error()
    );
    result
}

fn registers(pid: libc::pid_t) -> libc::user_regs_struct {
    // SAFETY: all zeros are valid registers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes registers to where they belong, during the call.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
    registers
}

fn set_registers(pid: libc::pid_t, registers: &libc::user_regs_struct) {
    // SAFETY: the kernel reads registers from where they are, during the call.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0, std::ptr::from_ref(registers)) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

fn wait_until_stopped(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: the status may be written during the call.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) };
    assert_eq!(waited, pid, "{}", io::Error::last_os_error());
    assert!(libc::WIFSTOPPED(status), "it has ended: {status:x}");
}
