//! What chains may cost, and what is counted of them.

use super::*;

/// A ring of 8 in memory that ends in 254 regions of a page each, from `SHREDS` on.
fn shredded() -> Pair {
    let shreds = (0..254).map(|i| (SHREDS + i * PAGE, PAGE));
    let regions: Vec<_> = std::iter::once((0, SHREDS)).chain(shreds).collect();
    let memory = TestMemory::new(&regions);
    let driver = DriverQueue::new(Arc::clone(&memory), 0, 8, true);
    let device = device(&memory, &driver, true);
    Pair { memory, driver, device, iovecs: GuestIoVecs::default() }
}

const SHREDS: u64 = 64 * PAGE;

/// Units of work that a chain may cost: each descriptor and each iovec is looked up once, by 9 comparisons at most.
const CHAIN_COST: u64 = 2 * MAX_CHAIN as u64 * (1 + 9);

#[test]
fn a_chain_costs_no_more_than_its_limits_allow() {
    let all = 254 * PAGE as u32;
    let buffer = |addr, len, access| match access {
        Access::Read { .. } => Buffer::readable(addr, len),
        Access::Write { .. } => Buffer::writable(addr, len),
    };
    for access in [READ, WRITE] {
        let crossing = vec![buffer(SHREDS, all, access); MAX_CHAIN];
        let hopping: Vec<_> = (0..MAX_CHAIN as u64)
            .map(|i| buffer(SHREDS + i * 37 % 254 * PAGE + PAGE - 1, 2, access))
            .collect();
        for buffers in [crossing, hopping] {
            let mut pair = shredded();
            pair.driver.post_indirect(TABLE, &buffers).unwrap();
            let _ = work::take();
            pair.pop(access);
            let work = work::take();
            assert!(work.total() <= CHAIN_COST, "{work:?} for {access:?} {:?}", buffers[0]);
        }
    }
}

/// Each may miss the cache and the TLB.
#[test]
fn short_descriptors_beyond_the_second_are_counted() {
    for (lens, scattered) in [
        (vec![12, 64], 0),
        (vec![1, 1, 2047], 1),
        (vec![1, 1, 2048], 0),
        (vec![12, 4096, 4096, 4096, 100], 1),
        (vec![1; 1023], 1021),
    ] {
        for access in [READ, WRITE] {
            let buffer = |&len: &u32| match access {
                Access::Read { .. } => Buffer::readable(BUFFERS, len),
                Access::Write { .. } => Buffer::writable(BUFFERS, len),
            };
            let mut pair = Pair::new(8, true);
            pair.driver.post_indirect(TABLE, &lens.iter().map(buffer).collect::<Vec<_>>()).unwrap();
            assert!(matches!(pair.pop(access), Pop::Chain(_)), "{lens:?}");
            assert_eq!(pair.device.take_scattered(), scattered, "{lens:?}");
            assert_eq!(pair.device.take_scattered(), 0);
        }
    }
}

/// What is written to it has to be gathered from all over.
#[test]
fn a_chain_to_write_has_no_more_pieces_than_its_bytes_allow() {
    for need in [64, 1500, 60_000] {
        let most = most_iovecs(need as usize);
        for (iovecs, fits) in [(most, true), (most + 1, false)] {
            let mut lens = vec![1; iovecs];
            lens[iovecs - 1] = need;
            let chain: Vec<_> = lens.iter().map(|&len| Buffer::writable(BUFFERS, len)).collect();
            let mut pair = Pair::new(8, true);
            let head = pair.driver.post_indirect(TABLE, &chain).unwrap();
            let expected = match fits {
                true => Pop::Chain(Chain { head, len: need }),
                false => Pop::Malformed { head, error: ChainError::Scattered },
            };
            assert_eq!(pair.pop(Access::Write { need }), expected, "{iovecs} iovecs");
        }
    }
}
