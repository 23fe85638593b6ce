//! Filter expressions, compiled by libpcap.
//!
//! # Theory of operation
//! The expression language is libpcap's, and only libpcap knows all of it. It is loaded when an expression is to be compiled and not before: the program that moves frames
//! runs without it and never has it in its address space, and a build needs no headers of it. What it makes, a program of classic BPF, goes to the switch, which trusts neither it nor
//! us and checks it.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use anyhow::{anyhow, bail};

/// An instruction of classic BPF: code, jt, jf, k.
type Instruction = (u16, u8, u8, u32);

/// What the library is called: by Debian and its relatives, and by all others.
const NAMES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];
/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// `PCAP_NETMASK_UNKNOWN`.
const NO_NETMASK: u32 = u32::MAX;

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct BpfInsn {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
struct BpfProgram {
    len: c_uint,
    instructions: *mut BpfInsn,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile =
    unsafe extern "C" fn(*mut c_void, *mut BpfProgram, *const c_char, c_int, u32) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut BpfProgram);
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Close = unsafe extern "C" fn(*mut c_void);

/// Functions of libpcap, which stays loaded.
struct Library {
    open_dead: OpenDead,
    compile: Compile,
    free_code: FreeCode,
    get_error: GetError,
    close: Close,
}

impl Library {
    fn load() -> anyhow::Result<Self> {
        // SAFETY: the names are C strings; the library's initializers do nothing that we have to know of.
        let open = |name: &&CStr| unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        let handle = NAMES.iter().map(open).find(|handle| !handle.is_null());
        let missing = || anyhow!("--filter needs libpcap: install libpcap0.8 (Debian) or libpcap");
        let handle = handle.ok_or_else(missing)?;
        let symbol = |name: &CStr| {
            // SAFETY: the handle is open, the name a C string.
            let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
            let missing = || anyhow!("libpcap has no {}: too old", name.to_string_lossy());
            if symbol.is_null() { Err(missing()) } else { Ok(symbol) }
        };
        // SAFETY: libpcap has declared these functions so since 1.0 (pcap.h).
        unsafe {
            Ok(Self {
                open_dead: std::mem::transmute::<*mut c_void, OpenDead>(symbol(c"pcap_open_dead")?),
                compile: std::mem::transmute::<*mut c_void, Compile>(symbol(c"pcap_compile")?),
                free_code: std::mem::transmute::<*mut c_void, FreeCode>(symbol(c"pcap_freecode")?),
                get_error: std::mem::transmute::<*mut c_void, GetError>(symbol(c"pcap_geterr")?),
                close: std::mem::transmute::<*mut c_void, Close>(symbol(c"pcap_close")?),
            })
        }
    }

    /// The program of an expression, or what libpcap says of it.
    fn compile(&self, expression: &CStr, snap_len: c_int) -> Result<Vec<Instruction>, String> {
        let mut program = BpfProgram { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is of this library and closed last; the program is initialized by `compile` if that returns zero, and then
        // holds as many instructions as it says until it is freed; the error is a C string in the handle.
        unsafe {
            let handle = (self.open_dead)(ETHERNET, snap_len);
            if handle.is_null() {
                return Err("libpcap has no memory left".to_owned());
            }
            let failed =
                (self.compile)(handle, &raw mut program, expression.as_ptr(), 1, NO_NETMASK) != 0;
            let result = if failed {
                Err(CStr::from_ptr((self.get_error)(handle)).to_string_lossy().into_owned())
            } else {
                let list = std::slice::from_raw_parts(program.instructions, program.len as usize);
                let list = list.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect();
                (self.free_code)(&raw mut program);
                Ok(list)
            };
            (self.close)(handle);
            result
        }
    }
}

/// Compiles an expression for Ethernet frames of which `snap_len` bytes are captured.
///
/// # Errors
/// There is no libpcap, or it does not understand the expression.
pub fn compile(expression: &str, snap_len: u32) -> anyhow::Result<Vec<Instruction>> {
    let Ok(text) = CString::new(expression) else { bail!("--filter: a NUL in the expression") };
    let snap_len = c_int::try_from(snap_len).unwrap_or(c_int::MAX);
    let program = Library::load()?.compile(&text, snap_len);
    program.map_err(|problem| anyhow!("--filter {expression:?}: {problem}"))
}

#[cfg(test)]
mod tests {
    use floodway_wire::bpf::{Instruction, Program};

    use super::*;

    fn program(expression: &str) -> Program {
        let list = compile(expression, 262_144).unwrap();
        let list: Vec<_> =
            list.into_iter().map(|(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect();
        Program::new(&list).unwrap()
    }

    /// A frame of VM 1 to VM 2 over UDP to port 7, perhaps in VLAN 5.
    fn udp(vlan: bool) -> Vec<u8> {
        let mut frame = floodway_switch::testing::frames::numbered(1, 2, 0, 40);
        if vlan {
            frame.splice(12..12, [0x81, 0, 0, 5]);
        }
        frame
    }

    #[test]
    fn what_libpcap_compiles_the_switch_understands() {
        for (expression, plain, tagged) in [
            ("udp", true, false),
            ("udp port 7", true, false),
            ("vlan 5 and udp dst port 7", false, true),
            ("tcp", false, false),
            ("not tcp", true, true),
            ("host 10.0.0.2", true, false),
            ("ether src 52:54:00:00:00:01", true, true),
            ("ip6 or arp", false, false),
            ("greater 60", true, true),
            ("less 60", false, false),
            ("udp[8:4] = 0", true, false),
            ("ip[8] * 2 / 2 % 256 = ip[8]", true, false),
            ("(src net 10.0.0.0/24 and dst port (7 or 9)) or icmp", true, false),
        ] {
            let program = program(expression);
            for (vlan, expected) in [(false, plain), (true, tagged)] {
                let frame = udp(vlan);
                let accepted = program.accepts(&frame, frame.len() as u32);
                assert_eq!(accepted, expected, "{expression}, tagged {vlan}");
            }
        }
    }

    #[test]
    fn an_expression_that_is_wrong_is_refused_with_what_libpcap_says() {
        let error = compile("tcp porrt 80", 262_144).unwrap_err().to_string();
        assert!(error.starts_with("--filter \"tcp porrt 80\": "), "{error}");
        assert!(compile("a\0b", 64).is_err());
    }
}
