//! Packet filters in classic BPF: what `pcap_compile` makes of an expression like `tcp port 80`.
//!
//! # Theory of operation
//! A program is a list of instructions for a machine with an accumulator, an index register and 16 words of scratch memory, which reads the packet and
//! returns how many bytes of it are wanted; none means that the packet is not. It comes from whoever asks for a capture, so
//! [`Program::new`] checks it as the kernel and libpcap do: every instruction is known, jumps lead forward and stay inside, scratch
//! indices are below 16, no constant divisor is zero, and the last instruction returns.
//!
//! **Invariant**: a checked program ends after at most as many steps as it has instructions, and reads nothing but the packet. A load from
//! beyond the packet, or a division by zero, rejects it.
//!
//! Source: McCanne and Jacobson, "The BSD Packet Filter" (USENIX 1993); libpcap, `bpf_filter.c` and `bpf_validate`.

/// Most instructions of a program: `BPF_MAXINSNS` of Linux.
pub const MAX_LEN: usize = 4096;

const MEMORY: usize = 16;

/// An instruction as `struct bpf_insn` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if a condition holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// A constant, an offset, an index of scratch memory or a jump's length.
    pub k: u32,
}

/// Why a program is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It has no instruction, or too many.
    #[error("a filter has 1 to {MAX_LEN} instructions, and this one {0}")]
    Length(usize),
    /// There is no such instruction.
    #[error("instruction {at} of the filter: there is no code {code:#x}")]
    Code {
        /// Its place.
        at: usize,
        /// Its code.
        code: u16,
    },
    /// A jump leads out of the program.
    #[error("instruction {0} of the filter jumps out of it")]
    Jump(usize),
    /// There is no such word of scratch memory.
    #[error("instruction {0} of the filter uses scratch memory beyond word 15")]
    Memory(usize),
    /// It always divides by zero, or shifts by more than a word has.
    #[error("instruction {0} of the filter divides by zero, or shifts by more than 31")]
    Operand(usize),
    /// The last instruction does not return.
    #[error("the filter does not end with a return")]
    NoReturn,
}

/// How many bytes a load takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Width {
    Word,
    Half,
    Byte,
}

/// The second operand of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Constant(u32),
    Index,
}

/// What an arithmetic instruction does to the accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alu {
    Add,
    Sub,
    Mul,
    Div,
    Mod,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
}

/// When a jump is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Equal,
    Greater,
    GreaterOrEqual,
    AnyBit,
}

/// A checked instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Load {
        width: Width,
        at: u32,
        indexed: bool,
    },
    LoadConstant(u32),
    LoadLength,
    LoadMemory(usize),
    LoadIndexConstant(u32),
    LoadIndexLength,
    LoadIndexMemory(usize),
    /// Four times the low half of the byte there: the length of an IPv4 header.
    LoadIndexHeaderLength(u32),
    Store(usize),
    StoreIndex(usize),
    Alu(Alu, Operand),
    Negate,
    Jump(u32),
    Branch {
        condition: Condition,
        with: Operand,
        jt: u8,
        jf: u8,
    },
    Return(u32),
    ReturnAccumulator,
    ToIndex,
    FromIndex,
}

/// A program that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program(Box<[Op]>);

impl Program {
    /// Checks a program.
    ///
    /// # Errors
    /// It is not valid.
    pub fn new(instructions: &[Instruction]) -> Result<Self, Invalid> {
        let len = instructions.len();
        if !(1..=MAX_LEN).contains(&len) {
            return Err(Invalid::Length(len));
        }
        let check = |(at, instruction)| check(at, instruction, len);
        let ops: Box<[Op]> =
            instructions.iter().enumerate().map(check).collect::<Result<_, _>>()?;
        match ops.last() {
            Some(Op::Return(_) | Op::ReturnAccumulator) => Ok(Self(ops)),
            _ => Err(Invalid::NoReturn),
        }
    }

    /// Number of instructions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Always `false`: a program returns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns `true` if a packet of `original_len` bytes is wanted, of which `packet` are the first.
    #[must_use]
    pub fn accepts(&self, packet: &[u8], original_len: u32) -> bool {
        self.run(packet, original_len).0 > 0
    }

    /// Runs it for a packet of `original_len` bytes, of which `packet` are the first. Returns how many bytes of it are wanted, and the number of steps
    /// that this took.
    #[must_use]
    pub fn run(&self, packet: &[u8], original_len: u32) -> (u32, usize) {
        let mut machine = Machine { packet, len: original_len, a: 0, x: 0, memory: [0; MEMORY] };
        let (mut at, mut steps) = (0, 0);
        while let Some(&op) = self.0.get(at) {
            steps += 1;
            match machine.step(op) {
                Step::Skip(n) => at += 1 + n as usize,
                Step::Return(bytes) => return (bytes, steps),
            }
        }
        (0, steps)
    }
}

/// What comes after an instruction.
enum Step {
    /// The one that follows so many others.
    Skip(u32),
    /// The end, with the number of bytes that are wanted.
    Return(u32),
}

/// The machine's registers.
struct Machine<'a> {
    packet: &'a [u8],
    len: u32,
    a: u32,
    x: u32,
    memory: [u32; MEMORY],
}

impl Machine<'_> {
    fn step(&mut self, op: Op) -> Step {
        match op {
            Op::Load { width, at, indexed } => {
                let at = if indexed { self.x.checked_add(at) } else { Some(at) };
                match at.and_then(|at| self.load(width, at)) {
                    Some(value) => self.a = value,
                    None => return Step::Return(0),
                }
            }
            Op::LoadIndexHeaderLength(at) => match self.load(Width::Byte, at) {
                Some(byte) => self.x = (byte & 0xf) * 4,
                None => return Step::Return(0),
            },
            Op::Alu(alu, operand) => match alu.apply(self.a, self.value(operand)) {
                Some(value) => self.a = value,
                None => return Step::Return(0),
            },
            Op::Jump(n) => return Step::Skip(n),
            Op::Branch { condition, with, jt, jf } => {
                let holds = condition.holds(self.a, self.value(with));
                return Step::Skip(if holds { jt } else { jf }.into());
            }
            Op::Return(bytes) => return Step::Return(bytes),
            Op::ReturnAccumulator => return Step::Return(self.a),
            op => self.transfer(op),
        }
        Step::Skip(0)
    }

    /// Moves a value between registers, memory and constants.
    fn transfer(&mut self, op: Op) {
        match op {
            Op::LoadConstant(k) => self.a = k,
            Op::LoadLength => self.a = self.len,
            Op::LoadMemory(i) => self.a = self.memory[i],
            Op::LoadIndexConstant(k) => self.x = k,
            Op::LoadIndexLength => self.x = self.len,
            Op::LoadIndexMemory(i) => self.x = self.memory[i],
            Op::Store(i) => self.memory[i] = self.a,
            Op::StoreIndex(i) => self.memory[i] = self.x,
            Op::Negate => self.a = self.a.wrapping_neg(),
            Op::ToIndex => self.x = self.a,
            Op::FromIndex => self.a = self.x,
            _ => {}
        }
    }

    fn load(&self, width: Width, at: u32) -> Option<u32> {
        let bytes = self.packet.get(at as usize..)?;
        Some(match width {
            Width::Word => u32::from_be_bytes(*bytes.first_chunk()?),
            Width::Half => u16::from_be_bytes(*bytes.first_chunk()?).into(),
            Width::Byte => (*bytes.first()?).into(),
        })
    }

    const fn value(&self, operand: Operand) -> u32 {
        match operand {
            Operand::Constant(k) => k,
            Operand::Index => self.x,
        }
    }
}

impl Alu {
    /// `None` for a division by zero.
    fn apply(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Div => a.checked_div(b)?,
            Self::Mod => a.checked_rem(b)?,
            Self::Or => a | b,
            Self::And => a & b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a.checked_shl(b).unwrap_or(0),
            Self::ShiftRight => a.checked_shr(b).unwrap_or(0),
        })
    }
}

impl Condition {
    const fn holds(self, a: u32, b: u32) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
            Self::AnyBit => a & b != 0,
        }
    }
}

/// Checks the instruction at place `at` of `len`.
fn check(at: usize, instruction: &Instruction, len: usize) -> Result<Op, Invalid> {
    let Instruction { code, k, .. } = *instruction;
    let unknown = Invalid::Code { at, code };
    // The classes of `bpf.h`.
    match code & 7 {
        0 => load(at, code, k)?.ok_or(unknown),
        1 => load_index(at, code, k)?.ok_or(unknown),
        2 if code == 0x02 => Ok(Op::Store(word(at, k)?)),
        3 if code == 0x03 => Ok(Op::StoreIndex(word(at, k)?)),
        4 => arithmetic(at, code, k)?.ok_or(unknown),
        5 => jump(at, instruction, len)?.ok_or(unknown),
        6 => match code {
            0x06 => Ok(Op::Return(k)),
            0x16 => Ok(Op::ReturnAccumulator),
            _ => Err(unknown),
        },
        7 => match code {
            0x07 => Ok(Op::ToIndex),
            0x87 => Ok(Op::FromIndex),
            _ => Err(unknown),
        },
        _ => Err(unknown),
    }
}

fn load(at: usize, code: u16, k: u32) -> Result<Option<Op>, Invalid> {
    let load = |width, indexed| Op::Load { width, at: k, indexed };
    Ok(Some(match code {
        0x00 => Op::LoadConstant(k),
        0x20 => load(Width::Word, false),
        0x28 => load(Width::Half, false),
        0x30 => load(Width::Byte, false),
        0x40 => load(Width::Word, true),
        0x48 => load(Width::Half, true),
        0x50 => load(Width::Byte, true),
        0x60 => Op::LoadMemory(word(at, k)?),
        0x80 => Op::LoadLength,
        _ => return Ok(None),
    }))
}

fn load_index(at: usize, code: u16, k: u32) -> Result<Option<Op>, Invalid> {
    Ok(Some(match code {
        0x01 => Op::LoadIndexConstant(k),
        0x61 => Op::LoadIndexMemory(word(at, k)?),
        0x81 => Op::LoadIndexLength,
        0xb1 => Op::LoadIndexHeaderLength(k),
        _ => return Ok(None),
    }))
}

fn arithmetic(at: usize, code: u16, k: u32) -> Result<Option<Op>, Invalid> {
    if code == 0x84 {
        return Ok(Some(Op::Negate));
    }
    let alu = match code & !8 {
        0x04 => Alu::Add,
        0x14 => Alu::Sub,
        0x24 => Alu::Mul,
        0x34 => Alu::Div,
        0x44 => Alu::Or,
        0x54 => Alu::And,
        0x64 => Alu::ShiftLeft,
        0x74 => Alu::ShiftRight,
        0x94 => Alu::Mod,
        0xa4 => Alu::Xor,
        _ => return Ok(None),
    };
    let operand = operand(code, k);
    match (alu, operand) {
        (Alu::Div | Alu::Mod, Operand::Constant(0))
        | (Alu::ShiftLeft | Alu::ShiftRight, Operand::Constant(32..)) => Err(Invalid::Operand(at)),
        _ => Ok(Some(Op::Alu(alu, operand))),
    }
}

fn jump(at: usize, instruction: &Instruction, len: usize) -> Result<Option<Op>, Invalid> {
    let Instruction { code, jt, jf, k } = *instruction;
    // Instructions behind this one.
    let left = (len - at - 1) as u32;
    if code == 0x05 {
        return if k < left { Ok(Some(Op::Jump(k))) } else { Err(Invalid::Jump(at)) };
    }
    let condition = match code & !8 {
        0x15 => Condition::Equal,
        0x25 => Condition::Greater,
        0x35 => Condition::GreaterOrEqual,
        0x45 => Condition::AnyBit,
        _ => return Ok(None),
    };
    if u32::from(jt.max(jf)) >= left {
        return Err(Invalid::Jump(at));
    }
    Ok(Some(Op::Branch { condition, with: operand(code, k), jt, jf }))
}

const fn operand(code: u16, k: u32) -> Operand {
    if code & 8 == 0 { Operand::Constant(k) } else { Operand::Index }
}

fn word(at: usize, k: u32) -> Result<usize, Invalid> {
    if (k as usize) < MEMORY { Ok(k as usize) } else { Err(Invalid::Memory(at)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn op(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
        Instruction { code, jt, jf, k }
    }

    /// `tcpdump -dd 'udp port 7'`, as libpcap 1.10 compiles it for Ethernet.
    const UDP_PORT_7: [Instruction; 20] = [
        op(0x28, 0, 0, 12),
        op(0x15, 0, 6, 0x86dd),
        op(0x30, 0, 0, 20),
        op(0x15, 0, 15, 17),
        op(0x28, 0, 0, 54),
        op(0x15, 12, 0, 7),
        op(0x28, 0, 0, 56),
        op(0x15, 10, 11, 7),
        op(0x15, 0, 10, 0x800),
        op(0x30, 0, 0, 23),
        op(0x15, 0, 8, 17),
        op(0x28, 0, 0, 20),
        op(0x45, 6, 0, 0x1fff),
        op(0xb1, 0, 0, 14),
        op(0x48, 0, 0, 14),
        op(0x15, 2, 0, 7),
        op(0x48, 0, 0, 16),
        op(0x15, 0, 1, 7),
        op(0x06, 0, 0, 262_144),
        op(0x06, 0, 0, 0),
    ];

    fn udp(port: u8) -> Vec<u8> {
        let mut frame = vec![0; 60];
        frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
        frame[23] = 17;
        frame[37] = port;
        frame
    }

    #[test]
    fn a_compiled_expression_selects_what_it_says() {
        let program = Program::new(&UDP_PORT_7).unwrap();
        assert!(program.accepts(&udp(7), 60));
        assert!(!program.accepts(&udp(8), 60));
        assert!(!program.accepts(&udp(7)[..37], 60), "what was not captured is not seen");
        let mut fragment = udp(7);
        fragment[21] = 1;
        assert!(!program.accepts(&fragment, 60));
    }

    #[test]
    fn registers_do_what_bpf_says() {
        let run = |body: &[Instruction], packet: &[u8]| {
            let program: Vec<_> = [body, &[op(0x16, 0, 0, 0)]].concat();
            Program::new(&program).unwrap().accepts(packet, 9)
        };
        // 7 + 5 - 12 = 0; the same by scratch memory and the index register.
        assert!(!run(&[op(0, 0, 0, 7), op(0x04, 0, 0, 5), op(0x14, 0, 0, 12)], &[]));
        let by_index =
            [op(0x01, 0, 0, 5), op(0x03, 0, 0, 15), op(0x60, 0, 0, 15), op(0x1c, 0, 0, 0)];
        assert!(!run(&by_index, &[]));
        assert!(run(&[op(0x80, 0, 0, 0), op(0x14, 0, 0, 8)], &[]), "length of the original");
        assert!(!run(&[op(0x80, 0, 0, 0), op(0x14, 0, 0, 9)], &[]));
        assert!(!run(&[op(0, 0, 0, 1), op(0x3c, 0, 0, 0)], &[]), "division by an index of zero");
        let overflow = [op(0x01, 0, 0, u32::MAX), op(0x50, 0, 0, 1)];
        assert!(!run(&overflow, &[1; 64]), "an offset does not wrap");
        assert!(run(&[op(0xb1, 0, 0, 0), op(0x87, 0, 0, 0)], &[0x45]));
        assert!(!run(&[op(0xb1, 0, 0, 0), op(0x87, 0, 0, 0), op(0x14, 0, 0, 20)], &[0x45]));
    }

    #[test]
    fn what_is_not_valid_is_refused_with_its_place() {
        let end = op(6, 0, 0, 0);
        assert_eq!(Program::new(&[]), Err(Invalid::Length(0)));
        assert_eq!(Program::new(&vec![end; MAX_LEN + 1]), Err(Invalid::Length(MAX_LEN + 1)));
        assert_eq!(Program::new(&[op(0, 0, 0, 1)]), Err(Invalid::NoReturn));
        for (bad, error) in [
            (op(0x05, 0, 0, 1), Invalid::Jump(0)),
            (op(0x05, 0, 0, u32::MAX), Invalid::Jump(0)),
            (op(0x15, 1, 0, 0), Invalid::Jump(0)),
            (op(0x15, 0, 255, 0), Invalid::Jump(0)),
            (op(0x02, 0, 0, 16), Invalid::Memory(0)),
            (op(0x61, 0, 0, u32::MAX), Invalid::Memory(0)),
            (op(0x34, 0, 0, 0), Invalid::Operand(0)),
            (op(0x94, 0, 0, 0), Invalid::Operand(0)),
            (op(0x64, 0, 0, 32), Invalid::Operand(0)),
            (op(0xff, 0, 0, 0), Invalid::Code { at: 0, code: 0xff }),
            (op(0x1020, 0, 0, 0), Invalid::Code { at: 0, code: 0x1020 }),
            (op(0x12, 0, 0, 0), Invalid::Code { at: 0, code: 0x12 }),
        ] {
            assert_eq!(Program::new(&[bad, end]), Err(error), "{bad:?}");
        }
    }

    fn instruction() -> impl Strategy<Value = Instruction> {
        let code = prop_oneof![
            3 => prop::sample::select(&[
                0x00_u16, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02,
                0x03, 0x04, 0x0c, 0x1c, 0x24, 0x3c, 0x44, 0x54, 0x6c, 0x7c, 0x84, 0x9c, 0xa4, 0x05, 0x15,
                0x1d, 0x25, 0x35, 0x45, 0x06, 0x16, 0x07, 0x87,
            ][..]),
            1 => any::<u16>(),
        ];
        let k = prop_oneof![0..80_u32, any::<u32>()];
        (code, 0..4_u8, 0..4_u8, k).prop_map(|(code, jt, jf, k)| op(code, jt, jf, k))
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_ends(
            body in prop::collection::vec(instruction(), 0..40),
            packet in prop::collection::vec(any::<u8>(), 0..80),
            len in any::<u32>(),
        ) {
            let program = [&body[..], &[op(6, 0, 0, 1)]].concat();
            if let Ok(program) = Program::new(&program) {
                prop_assert_eq!(program.len(), body.len() + 1);
                let (wanted, steps) = program.run(&packet, len);
                prop_assert!(steps <= program.len());
                prop_assert_eq!(program.accepts(&packet, len), wanted > 0);
            }
        }
    }
}
