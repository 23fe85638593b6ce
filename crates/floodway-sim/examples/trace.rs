use floodway_core::congestion::Algorithm;
use floodway_core::offload::{BufferPolicy, Config};
use floodway_sim::cpu::*;
use floodway_sim::engine::Rng;
use floodway_sim::machine::*;
use floodway_sim::net::*;
use floodway_sim::offload::*;
use floodway_sim::packet::*;
use floodway_sim::tcp::*;
use floodway_sim::traffic::*;
use floodway_sim::world::*;
use floodway_sim::{Duration, Instant};
struct Log {
    inner: Box<dyn Hook>,
    on: std::rc::Rc<std::cell::RefCell<Vec<(u64, String)>>>,
}
fn d(p: &Packet) -> String {
    match p.tcp() {
        Some(t) => {
            format!("seq {} len {} ack {} win {} {:?}", t.seq.0, t.len, t.ack.0, t.window, t.flags)
        }
        None => format!("{:?}", p.body),
    }
}
impl Hook for Log {
    fn outbound(&mut self, vm: u32, p: PacketId, c: &mut HookCtx<'_>) {
        let s = d(c.packets().get(p));
        self.on.borrow_mut().push((c.now().as_nanos(), format!("OUT {vm} {s}")));
        self.inner.outbound(vm, p, c)
    }
    fn inbound(&mut self, vm: u32, p: PacketId, c: &mut HookCtx<'_>) {
        let s = d(c.packets().get(p));
        self.on.borrow_mut().push((c.now().as_nanos(), format!("IN {vm} {s}")));
        self.inner.inbound(vm, p, c)
    }
    fn flush(&mut self, c: &mut HookCtx<'_>) {
        self.inner.flush(c)
    }
    fn next_timeout(&self) -> Instant {
        self.inner.next_timeout()
    }
    fn is_due(&mut self, n: Instant) -> bool {
        let r = self.inner.is_due(n);
        if r {
            self.on.borrow_mut().push((n.as_nanos(), "HOOK due".into()));
        }
        r
    }
    fn on_timeout(&mut self, c: &mut HookCtx<'_>) {
        self.inner.on_timeout(c)
    }
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let on = a[1] == "on";
    let bytes: u64 = a[2].parse().unwrap();
    let load: u32 = a[3].parse().unwrap();
    let seed: u64 = a[4].parse().unwrap();
    let rate: u64 = a[5].parse().unwrap();
    let slots: u32 = a[6].parse().unwrap();
    let vms: u32 = a[7].parse().unwrap();
    let round: u32 = a[8].parse().unwrap();
    let us = Duration::from_micros;
    let ns = Duration::from_nanos;
    let mut b = Builder::new(seed);
    let q = QueueConfig::packets(1000);
    let c = b.switch(SwitchConfig::new(q));
    let nic =
        NicConfig { ring_bytes: u64::MAX, ring_slots: 256, queue: QueueConfig::packets(1000) };
    let m = b.host(nic);
    b.connect(m, c, Link::ethernet(1_000_000_000, us(50)));
    let e = b.host(nic);
    b.connect(e, c, Link::ethernet(1_000_000_000, us(50)));
    let mut w = World::new(b.build());
    let cfg =
        CreditConfig { rate_limit: us(rate), debit: Debit::Sampled, ..CreditConfig::xen_4_2() };
    let log = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let port = Config {
        transmit: true,
        receive: false,
        congestion: Algorithm::Reno,
        initial_window: 3,
        buffer: BufferPolicy::Fair,
        budget: 2048 * 1500,
        receive_budget: 2048 * 1500,
        min_rto: Duration::from_millis(100),
        ..Config::default()
    };
    let inner: Box<dyn Hook> = if on {
        Box::new(SwitchOffload::new(
            OffloadConfig { port, tx_cost: ns(48), rx_cost: ns(169) },
            seed,
        ))
    } else {
        Box::new(PassThrough)
    };
    let mc = MachineConfig {
        pcpus: 2,
        scheduler: Box::new(Credit::new(2, cfg)),
        switch_cost: us(3),
        cache_cost: Duration::ZERO,
        driver: DriverConfig {
            vcpu: VcpuSpec::pinned(0, 256),
            tx_cost: ns(4000),
            rx_cost: ns(4000),
            rx_slots: 512,
            interrupts: Interrupts {
                delay: us(20),
                frames: 5,
                gap: Duration::ZERO,
                tx_delay: us(72),
            },
            backlog: 2048,
            batch: 64,
        },
    };
    let mach = w.add_machine(0, mc, Box::new(Log { inner, on: log.clone() }));
    w.machine_mut(mach).cpus_mut().record();
    let period = Duration::from_millis(30);
    let mut rng = Rng::new(seed, "load", 0);
    let mut vm0 = None;
    for _ in 0..vms {
        let phase = Duration::from_nanos(rng.below(30_000_000));
        let lc = LoadConfig {
            busy: Busy::Processor(period * load / 100),
            pause: Pause::Period(period),
            phase,
            operations: 1,
        };
        let v = w.add_vm(
            mach,
            &VmConfig {
                ring_slots: slots,
                queue: 4000,
                load: (load > 0).then_some(lc),
                ..VmConfig::new(VcpuSpec::pinned(0, 256))
            },
        );
        vm0.get_or_insert(v);
    }
    let peer = w.add_bare(1);
    let stack = TcpConfig {
        rto: floodway_core::rtt::RtoLimits::LINUX,
        receive: Buffer { initial: 65535, max: 3 << 20 },
        spares_queued: true,
        ..TcpConfig::linux_2_6()
    };
    let app = w.add_app(Transfers::new(TransfersConfig {
        from: vm0.unwrap(),
        to: vec![(peer, 1)],
        bytes,
        rounds: round + 1,
        back_to_back: false,
        gap: period * 2,
        stacks: [stack; 2],
        seed,
    }));
    while !w.app::<Transfers>(app).unwrap().is_done() {
        let n = w.now();
        w.run(n + Duration::from_millis(100));
    }
    let ts = w.app::<Transfers>(app).unwrap().complete().to_vec();
    let t = ts.last().unwrap();
    eprintln!(
        "begun {} connected {} first {} last {} acked {}",
        t.begun.as_nanos() / 1000,
        t.connected.as_nanos() / 1000,
        t.first.as_nanos() / 1000,
        t.last.as_nanos() / 1000,
        t.acknowledged.as_nanos() / 1000
    );
    let (lo, hi) = (t.begun.as_nanos(), t.acknowledged.as_nanos() + 1_000_000);
    let mut all: Vec<(u64, String)> =
        log.borrow().iter().filter(|x| x.0 >= lo && x.0 <= hi).cloned().collect();
    for dd in w.machine(mach).cpus().recorded() {
        let n = dd.at.as_nanos();
        if n >= lo && n <= hi && dd.pcpu.0 == 0 {
            all.push((n, format!("RUN {:?}", dd.vcpu.map(|v| v.0))));
        }
    }
    all.sort_by_key(|x| x.0);
    for (n, s) in all {
        println!("{:.3} {}", n as f64 / 1e6, s);
    }
}
