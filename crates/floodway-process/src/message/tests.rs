//! Messages are what they were when they arrive, and within their bounds.

use proptest::prelude::*;

use super::*;

fn change() -> impl Strategy<Value = Change> {
    let own = proptest::collection::vec(any::<u8>(), 0..=MAX_OWN_ENTRY);
    prop_oneof![
        any::<u64>().prop_map(|key| Change::Keep { key }),
        (any::<u64>(), own).prop_map(|(key, bytes)| Change::KeepOwn { key, bytes }),
        any::<(u64, u64)>().prop_map(|(first, last)| Change::Forget { first, last }),
    ]
}

fn handled() -> impl Strategy<Value = Handled> {
    let reply = proptest::collection::vec(any::<u8>(), 0..=MAX_VHOST_MESSAGE);
    let changes = proptest::collection::vec(change(), 0..=MAX_CHANGES);
    (any::<(u32, u64, bool)>(), changes, reply).prop_map(
        |((session, number, hang_up), changes, reply)| Handled {
            session,
            number,
            changes,
            reply,
            hang_up,
        },
    )
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(handled in handled(), cut in any::<prop::sample::Index>()) {
        let message = FromPort::Handled(handled);
        let bytes = encode(&message).unwrap();
        prop_assert_eq!(decode::<FromPort>(&bytes, 0), Ok(message.clone()));
        // Neither a part nor more than the whole.
        let part = &bytes[..cut.index(bytes.len())];
        prop_assert!(decode::<FromPort>(part, 0).is_err());
        let more = [&bytes[..], &[0]].concat();
        prop_assert!(decode::<FromPort>(&more, 0).is_err());
    }

    #[test]
    fn any_bytes_are_a_message_within_its_bounds_or_a_violation(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        if let Ok(message) = decode::<FromPort>(&bytes, 0) {
            prop_assert!(message.check().is_ok());
        }
        if let Ok(message) = decode::<FromDataPlane>(&bytes, 0) {
            prop_assert!(message.check().is_ok());
        }
    }
}

#[test]
fn the_largest_message_fits_into_a_datagram() {
    let own = Change::KeepOwn { key: u64::MAX, bytes: vec![0xff; MAX_OWN_ENTRY] };
    let largest = FromPort::Handled(Handled {
        session: u32::MAX,
        number: u64::MAX,
        changes: vec![own; MAX_CHANGES],
        reply: vec![0xff; MAX_VHOST_MESSAGE],
        hang_up: true,
    });
    assert!(encode(&largest).unwrap().len() <= MAX_DATAGRAM);
    let setting = Setting { key: "k".repeat(MAX_KEY), value: vec![0xff; MAX_VALUE] };
    assert!(encode(&FromDataPlane::Remember(setting)).is_ok());
    let refusal = Some("r".repeat(MAX_REASON + 1));
    let error = encode(&FromDataPlane::Changed { number: 1, refusal }).unwrap_err();
    assert_eq!(error.to_string(), "refusal = 257: at most 256");
}

#[test]
fn a_bound_that_is_exceeded_is_named() {
    let reply = vec![0; MAX_VHOST_MESSAGE + 1];
    let message = FromPort::Handled(Handled { reply, ..Handled::default() });
    let bytes = postcard::to_allocvec(&message).unwrap();
    let error = decode::<FromPort>(&bytes, 0).unwrap_err();
    assert_eq!(error.to_string(), "reply = 4109: at most 4108");
    assert_eq!(encode(&message).unwrap_err(), error, "the sender finds it, too");
}

#[test]
fn a_message_has_the_descriptors_that_it_is_about() {
    let packet = ToDataPlane::Uplink { number: 0, kind: UplinkKind::Packet, link_rate: None };
    let bytes = encode(&packet).unwrap();
    assert_eq!(decode(&bytes, 2), Ok(packet));
    for wrong in [0, 1, 3] {
        let error = decode::<ToDataPlane>(&bytes, wrong).unwrap_err();
        assert_eq!(error, Violation::Descriptors { found: wrong, expected: 2..=2 });
    }
}

#[test]
fn what_is_exported_and_imported_comes_with_its_memory() {
    let messages = [
        (ToDataPlane::Export { port: 1, flows: 2, bytes: 3 }, 1),
        (ToDataPlane::Import { port: 1, bytes: 3 }, 1),
        (ToDataPlane::Arriving { port: 1, arriving: true }, 0),
        (ToDataPlane::StayBehind { port: 1 }, 0),
        (ToDataPlane::Released { port: 1 }, 0),
    ];
    for (message, descriptors) in messages {
        let bytes = encode(&message).unwrap();
        assert!(decode::<ToDataPlane>(&bytes, 1 - descriptors).is_err(), "{message:?}");
        assert_eq!(decode(&bytes, descriptors), Ok(message));
    }
}

#[test]
fn the_longest_programs_fit_into_a_message() {
    use crate::upgrade::{MAX_BINARY, MAX_VERSION, Program, Programs, Upgrades};
    let long = |max| "é".repeat(max);
    let program = Program::new(&long(MAX_VERSION), &long(MAX_BINARY));
    let problem = |len| Some("x".repeat(len));
    let upgrades = Upgrades {
        from: program.version.clone(),
        problem: problem(MAX_REASON),
        ..Upgrades::default()
    };
    let mut programs = Programs { broker: program.clone(), data_plane: program, upgrades };
    assert!(encode(&ToDataPlane::Programs(programs.clone())).is_ok());
    programs.upgrades.problem = problem(MAX_REASON + 1);
    assert!(encode(&ToDataPlane::Programs(programs)).is_err());
}
