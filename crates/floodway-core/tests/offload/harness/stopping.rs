//! The guest is stopped, goes on, moves to another host, or dies.

use super::World;

impl World {
    /// The guest's module has answered a notice, or is gone.
    pub fn hear_module(&mut self, heard: bool) {
        let now = self.switch.time(self.now);
        self.switch.offload.hear_module(heard, now, &mut self.switch.actions);
        self.carry_out();
    }

    /// The switch stops in good order.
    pub fn reset_owing(&mut self) {
        let now = self.switch.time(self.now);
        self.switch.offload.reset_owing(now, &mut self.switch.actions);
        self.carry_out();
    }

    /// The guest has no CPU, but its rings run: frames wait for it.
    pub fn deschedule_guest(&mut self) {
        self.cpu.stopped = true;
    }

    /// A guest without a CPU has one again.
    pub fn reschedule_guest(&mut self) {
        self.cpu.stopped = false;
    }

    /// The guest's rings stop, and what has waited in its queue is lost.
    pub fn stop_guest(&mut self) {
        self.cpu.stopped = true;
        self.rings_stopped = true;
        self.inbox.clear();
        self.monitor.lost_queue(self.guest.rx.nxt, self.guest.rx.out_of_order());
        self.switch.offload.suspend();
    }

    /// The guest goes on here.
    pub fn resume_guest(&mut self) {
        self.cpu.stopped = false;
        self.rings_stopped = false;
        let now = self.switch.time(self.now);
        self.switch.offload.resume(now, &mut self.switch.actions);
        self.carry_out();
    }

    /// The guest, which was stopped here, goes on at another host, whose switch has no offload. What this one sends it arrives there.
    pub fn move_guest(&mut self) {
        self.cpu.stopped = false;
        self.rings_stopped = false;
        self.bypass = 1000;
        let now = self.switch.time(self.now);
        self.switch.offload.hand_over(now, &mut self.switch.actions);
        self.carry_out();
    }

    /// The guest is dead, and its switch knows.
    pub fn kill_guest(&mut self) {
        self.stop_guest();
        let now = self.switch.time(self.now);
        self.switch.offload.abort(now, &mut self.switch.actions);
        self.carry_out();
    }
}
