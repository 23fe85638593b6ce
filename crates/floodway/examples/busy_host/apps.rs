//! What VMs and their peer do.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::{enter_namespace, ip};

/// The peer beyond the uplink.
const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Takes what it is sent, and sends what it is asked for.
const PORT: u16 = 5001;
const CHUNK: usize = 32 << 10;

/// The address of the VM with this index.
pub const fn address(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, 10 + index)
}

/// What the VM with this index does, beside `connections` that say little.
pub fn run(index: u8, connections: u32) {
    thread::spawn(serve);
    thread::spawn(move || quiet(index, connections));
    match index {
        // Two that send without end, one with pauses.
        0 => send(PEER, f64::INFINITY, u64::MAX, Duration::ZERO),
        1 => send(PEER, f64::INFINITY, 24 << 20, Duration::from_secs(4)),
        // Answers of some size, again and again.
        2 => send(PEER, f64::INFINITY, 400_000, Duration::from_millis(700)),
        // One that receives.
        3 => ask(24e6),
        // Two VMs of the host that send each other much.
        4 => send(address(5), 240e6, u64::MAX, Duration::ZERO),
        5 => send(address(4), 40e6, u64::MAX, Duration::ZERO),
        6 => send(PEER, 3e6, u64::MAX, Duration::ZERO),
        _ => {}
    }
}

/// Sends streams of `bytes` at `bps`, with pauses between them, without end.
fn send(to: Ipv4Addr, bps: f64, bytes: u64, pause: Duration) {
    loop {
        // Whoever does not listen yet will.
        if let Some(stream) = connect(to) {
            write(stream, bps, bytes);
        }
        thread::sleep(pause.max(Duration::from_millis(100)));
    }
}

/// Asks the peer for a stream of `bps` without end.
fn ask(bps: f64) {
    loop {
        if let Some(mut stream) = connect(PEER) {
            let _ = stream.write_all(&(bps as u64).to_be_bytes());
            read(stream);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn connect(to: Ipv4Addr) -> Option<TcpStream> {
    let address = SocketAddr::from((to, PORT));
    TcpStream::connect_timeout(&address, Duration::from_secs(3)).ok()
}

/// Writes until `bytes` are written or the other end is gone.
fn write(mut stream: TcpStream, bps: f64, bytes: u64) {
    let (start, mut written) = (Instant::now(), 0);
    // Nothing is asked for.
    if stream.write_all(&0_u64.to_be_bytes()).is_err() {
        return;
    }
    while written < bytes && stream.write_all(&[0; CHUNK]).is_ok() {
        written += CHUNK as u64;
        let due = Duration::from_secs_f64(written as f64 * 8.0 / bps);
        thread::sleep(due.saturating_sub(start.elapsed()));
    }
}

fn read(mut stream: TcpStream) {
    // On the heap: there may be a thousand.
    let mut buffer = vec![0; CHUNK];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

/// Takes all connections; one whose first eight bytes ask for a rate is sent a stream of it.
fn serve() {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("listen");
    for stream in listener.incoming().flatten() {
        let serve = move || serve_one(stream);
        thread::Builder::new().stack_size(64 << 10).spawn(serve).expect("a thread");
    }
}

fn serve_one(mut stream: TcpStream) {
    let mut asked = [0; 8];
    if stream.read_exact(&mut asked).is_err() {
        return;
    }
    match u64::from_be_bytes(asked) {
        0 => read(stream),
        bps => write(stream, bps as f64, u64::MAX),
    }
}

/// Keeps connections to the peer open, each of which says a little every few seconds.
fn quiet(index: u8, connections: u32) {
    let mut open: Vec<TcpStream> = Vec::new();
    loop {
        if open.len() < connections as usize
            && let Some(mut stream) = connect(PEER)
            && stream.write_all(&0_u64.to_be_bytes()).is_ok()
        {
            open.push(stream);
        }
        let pause = Duration::from_millis(if open.len() < connections as usize { 10 } else { 40 });
        thread::sleep(pause + Duration::from_millis(u64::from(index)));
        if !open.is_empty() {
            let mut stream = open.remove(0);
            if stream.write_all(&[0; 600]).is_ok() {
                open.push(stream);
            }
        }
    }
}

/// The peer, in a namespace of its own, once it has its device and its standard input ends.
pub fn peer(device: &str) {
    enter_namespace();
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    ip("link set dev lo up");
    ip(&format!("link set dev {device} addrgenmode none"));
    ip(&format!("addr add {PEER}/24 dev {device}"));
    ip(&format!("link set dev {device} up"));
    serve();
}
