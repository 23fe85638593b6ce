//! A data plane that was taken over, for the fuzz target `broker`.
//!
//! The input is a list of steps: of a front-end that sends messages, and of data planes that say anything and end at any moment.
//!
//! **Oracle**: for any input, the record stays within its limits and has no descriptor but those that came with messages of its own session; a
//! reply is written only for a message that was delivered and had none; a message that breaks the protocol changes nothing. On the main channel one of the layouts
//! is in force that were proposed, the last one unless it was refused; settings stay within their bound.

use std::collections::BTreeSet;

use floodway_process::message::{
    self, Change, FromDataPlane, FromPort, Handled, MAX_CHANGES, ToPort,
};

use crate::record::{Limits, Packet};
use crate::session::{Outgoing, Session};
use crate::settings::Settings;
use crate::transaction::Transaction;

const LIMITS: Limits = Limits { entries: 8, bytes: 300, descriptors: 8 };

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }

    /// So many bytes, or what is left.
    fn bytes(&mut self, len: u8) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(usize::from(len).min(self.0.len()));
        self.0 = rest;
        taken
    }
}

/// The broker's side of one port, and what it must not do.
struct Port {
    id: u32,
    session: Session<u32>,
    /// Descriptors that came in this session.
    given: BTreeSet<u32>,
    next_descriptor: u32,
    /// Number of the message that may be answered.
    unanswered: Option<u64>,
}

impl Port {
    fn connect(id: u32, next_descriptor: u32) -> Self {
        let session = Session::new(id, LIMITS);
        let mut port =
            Self { id, session, given: BTreeSet::new(), next_descriptor, unanswered: None };
        port.attach();
        port
    }

    fn reconnect(&mut self) {
        *self = Self::connect(self.id + 1, self.next_descriptor);
    }

    fn attach(&mut self) {
        match self.session.attach() {
            Ok(replay) => assert!(replay.len() <= LIMITS.entries + 2, "a replay is the record"),
            Err(_) => self.reconnect(),
        }
    }

    fn replace_data_plane(&mut self) {
        self.unanswered = None;
        self.session.detach();
        self.attach();
    }

    fn note_delivery(&mut self, outgoing: &Outgoing<u32>) {
        let ToPort::Message { number, replayed: false, .. } = outgoing.message else {
            panic!("what is delivered is a message: {:?}", outgoing.message)
        };
        assert_eq!(self.unanswered, None, "one message at a time");
        self.unanswered = Some(number);
    }

    fn send(&mut self, bytes: &[u8], descriptors: u8) {
        let first = self.next_descriptor;
        let descriptors: Vec<u32> = (first..first + u32::from(descriptors)).collect();
        if !self.session.is_ready() {
            return;
        }
        self.next_descriptor += descriptors.len() as u32;
        self.given.extend(&descriptors);
        let packet = Packet { bytes: bytes.to_vec(), descriptors };
        let outgoing = self.session.take(packet).expect("it is ready");
        self.note_delivery(&outgoing);
    }

    fn hear(&mut self, message: FromPort) {
        let answers = match &message {
            FromPort::Handled(handled) if handled.session == self.id => Some(handled.number),
            _ => None,
        };
        let before: Vec<_> = self.session.record().packets().cloned().collect();
        match self.session.receive(message) {
            Err(_) => {
                let after: Vec<_> = self.session.record().packets().cloned().collect();
                assert_eq!(before, after, "who is refused changes nothing");
                self.replace_data_plane();
            }
            Ok(outcome) => {
                if let Some(number) = answers {
                    assert_eq!(self.unanswered.take(), Some(number), "answered once");
                } else {
                    assert!(outcome.reply.is_empty(), "a reply without a message");
                }
                if let Some(outgoing) = outcome.deliver {
                    self.note_delivery(&outgoing);
                }
                if outcome.hang_up.is_some() {
                    self.reconnect();
                }
            }
        }
    }

    fn check(&self) {
        let packets: Vec<_> = self.session.record().packets().collect();
        let descriptors: Vec<_> = packets.iter().flat_map(|packet| &packet.descriptors).collect();
        let bytes: usize = packets.iter().map(|packet| packet.bytes.len()).sum();
        assert!(packets.len() <= LIMITS.entries && bytes <= LIMITS.bytes);
        assert!(descriptors.len() <= LIMITS.descriptors);
        assert!(descriptors.iter().all(|descriptor| self.given.contains(descriptor)));
    }
}

/// Runs `input`, on a port's channel and on the main one.
///
/// # Panics
/// The broker did what it must not.
pub fn data_plane(input: &[u8]) {
    on_port(Input(input));
    on_main_channel(Input(input));
}

fn on_port(mut input: Input<'_>) {
    let mut port = Port::connect(1, 0);
    while let Some(step) = input.byte() {
        match step % 6 {
            0 => {
                let (descriptors, len) = (input.byte().unwrap_or(0) % 5, input.byte().unwrap_or(0));
                port.send(input.bytes(len), descriptors);
            }
            1 => hear_raw(&mut port, &mut input),
            2 => {
                let handled = handled(port.id, port.unanswered.unwrap_or(0), &mut input);
                if message::encode(&handled).is_ok() {
                    port.hear(handled);
                }
            }
            3 => port.replace_data_plane(),
            4 => port.hear(FromPort::Resumed { session: port.id }),
            _ => port.session.on_undelivered(),
        }
        if step % 6 == 5 {
            // Only reported of a data plane that has ended.
            port.replace_data_plane();
        }
        port.check();
    }
}

/// A datagram, as it comes.
fn hear_raw(port: &mut Port, input: &mut Input<'_>) {
    let len = input.byte().unwrap_or(0);
    let datagram = input.bytes(len);
    if let Ok(message) = message::decode::<FromDataPlane>(datagram, 0) {
        assert!(message::encode(&message).is_ok());
    }
    match message::decode(datagram, 0) {
        Ok(message) => port.hear(message),
        Err(_) => port.replace_data_plane(),
    }
}

/// A plausible answer: what random bytes hardly are.
fn handled(session: u32, number: u64, input: &mut Input<'_>) -> FromPort {
    let mut handled = Handled { session, number, ..Handled::default() };
    let count = input.byte().unwrap_or(0);
    handled.hang_up = count & 0x80 != 0;
    for _ in 0..usize::from(count & 0x7f) % (MAX_CHANGES + 2) {
        let (kind, key) = (input.byte().unwrap_or(0), u64::from(input.byte().unwrap_or(0) % 16));
        handled.changes.push(match kind % 3 {
            0 => Change::Keep { key },
            1 => Change::KeepOwn { key, bytes: input.bytes(kind / 3).to_vec() },
            _ => Change::Forget { first: key, last: u64::from(kind) % 16 },
        });
    }
    let len = input.byte().unwrap_or(0);
    handled.reply = input.bytes(len).to_vec();
    FromPort::Handled(handled)
}

/// Ports of the switch on the main channel.
const PORTS: usize = 2;

/// The broker's side of the main channel, as far as it keeps anything, and what has to be in force.
struct Main {
    layouts: Transaction<u32>,
    settings: Settings,
    in_force: u32,
    /// The change that is open, and what was before.
    open: Option<(u64, u32)>,
    proposed: u32,
}

impl Main {
    fn propose(&mut self) {
        let next = self.proposed + 1;
        match (self.layouts.propose(next), self.open) {
            (Ok(number), None) => {
                self.open = Some((number, self.in_force));
                (self.proposed, self.in_force) = (next, next);
            }
            (Err(refused), Some(_)) => assert_eq!(refused, next),
            other => panic!("{other:?}"),
        }
    }

    fn hear(&mut self, message: FromDataPlane) {
        match message {
            FromDataPlane::Changed { number, refusal } => {
                self.on_changed(number, refusal.is_none());
            }
            FromDataPlane::Remember(setting) => {
                let known = self.settings.all().iter().any(|kept| kept.key == setting.key);
                let kept = self.settings.keep(setting, PORTS).is_ok();
                assert!(kept || !known, "what is known is replaced");
            }
            _ => {}
        }
    }

    fn on_changed(&mut self, number: u64, is_made: bool) {
        match (self.layouts.answer(number, is_made), self.open) {
            (Ok(not_in_force), Some((open, before))) => {
                assert_eq!(number, open);
                let refused = std::mem::replace(&mut self.in_force, before);
                if is_made {
                    self.in_force = refused;
                }
                assert_eq!(not_in_force, if is_made { before } else { refused });
                self.open = None;
            }
            // It is ended for that.
            (Err(_), open) => {
                assert!(open.is_none_or(|(open, _)| open != number));
                self.replace_data_plane();
            }
            (Ok(_), None) => panic!("an answer that nobody asked for"),
        }
    }

    fn replace_data_plane(&mut self) {
        assert_eq!(self.layouts.end(), self.open.take().map(|(_, before)| before));
    }
}

fn on_main_channel(mut input: Input<'_>) {
    let (layouts, settings) = (Transaction::new(0), Settings::default());
    let mut main = Main { layouts, settings, in_force: 0, open: None, proposed: 0 };
    while let Some(step) = input.byte() {
        match step % 4 {
            0 => main.propose(),
            1 => {
                let len = input.byte().unwrap_or(0);
                match message::decode(input.bytes(len), 0) {
                    Ok(message) => main.hear(message),
                    Err(_) => main.replace_data_plane(),
                }
            }
            2 => {
                // A plausible answer: to the change that is open, the one before or the one after.
                let open = main.open.map_or(0, |(number, _)| number);
                let number = (open + u64::from(step / 4 % 3)).saturating_sub(1);
                let refusal = (step >= 128).then(|| "no".to_owned());
                main.hear(FromDataPlane::Changed { number, refusal });
            }
            _ => main.replace_data_plane(),
        }
        assert_eq!(*main.layouts.in_force(), main.in_force);
        assert_eq!(main.layouts.is_open(), main.open.is_some());
        assert!(main.settings.all().len() <= 4 * (PORTS + 1));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_taken_over_data_plane_gets_nothing_but_its_own(
            input in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            super::data_plane(&input);
        }
    }
}
