//! Steps of the processes, each of which may be the last.

use floodway_process::fault::Point;

/// Number of a data plane, of a front-end's connection, of a frame, of a message in the script.
pub type Number = u8;

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    // The data plane's worker.
    /// `TxQueue::fill_within` takes a batch.
    TakeBatch(Number),
    /// `RxQueue::place` copies a frame and writes its used entry.
    PlaceFrame,
    /// The same without the copy: no code does that.
    PlaceEmpty,
    /// The copy alone: no code does that.
    FillEmpty,
    /// `RxQueue::flush` publishes the used index.
    PublishUsed,
    /// `Ring::interrupt`.
    Interrupt,
    /// `TxQueue::give_back` writes used entries and publishes the used index.
    CompleteBatch,
    /// `UplinkReceiver` takes a segment.
    ReceiveSegment,
    /// `Journal::open`.
    OpenFlow,
    /// `Journal::keep`, 1: bytes and record.
    WriteFrame,
    /// `Journal::keep`, 2: state.
    PublishFrame,
    /// `Journal::keep`, 3: numbers.
    NoteAcked,
    /// The engine's sink sends the acknowledgement.
    SendAck,
    /// `RxQueue::place` copies the segment.
    PlaceSegment,
    /// `Flow::guest_of_adopted`, or what does the same for a flow of this process: the guest's acknowledgement is heard.
    HearGuest,
    /// `Journal::acknowledged`, 1: numbers.
    NoteGuest,
    /// `Journal::acknowledged`, 2: state of frames that the guest has.
    ReleaseFrames,
    /// `Journal::close`, 1: the flow.
    CloseFlow,
    /// The guest's acknowledgement goes on to the peer.
    PassAck,
    /// `Receiver::redeliver` delivers what is owed.
    PlaceOwed,
    // The data plane's port thread.
    /// `Relay::on_channel` receives.
    ReceiveMessage,
    /// `FrontEnd::handle` lets the device act.
    Act,
    /// `Relay::on_channel` sends `Handled`.
    SendHandled,
    /// A reply past the broker: no code does that.
    ReplyDirectly,
    /// `Relay::on_channel` acts on a message of the record, or on the coming and going of a front-end.
    ActOnReplay,
    /// `Relay::on_channel` sends `Resumed`.
    SendResumed,
    // The data plane's main thread.
    /// `Equipment::receive`, and `Offload::adopt`.
    Equip,
    /// `data_plane::run` sends `Ready`.
    SendReady,
    // The broker's port thread.
    /// `Kept::set_busy`.
    SetMark,
    /// `Framer::read`.
    TakeMessage,
    /// `Session::take`, and the datagram.
    DeliverMessage,
    /// `Session::receive` of `Handled`.
    ReceiveHandled,
    /// `Server::on_message` writes the reply.
    WriteReply,
    /// `Kept::changes`.
    KeepChanges,
    /// `Kept::front_end`.
    KeepSession,
    /// `Server::settle`.
    RemoveMark,
    /// `Session::receive` of `Resumed`.
    ReceiveResumed,
    /// `Server::find_front_end`.
    AcceptFrontEnd,
    /// `Session::detach`: the last data plane has gone.
    LosePlane,
    /// `Kept::channel`.
    KeepChannel,
    /// `Session::attach`, and what it returns is sent.
    SendReplay,
    // The broker's main thread.
    /// `Broker::launch` starts a process.
    StartPlane,
    /// `Broker::leave_data_plane`.
    KeepPlane,
    /// `Broker::equip`: ports get their channels.
    AttachPorts,
    /// `Broker::equip`: the rest.
    SupplyPlane,
    /// `Broker::on_message` of `Ready`.
    KeepReady,
    /// `Process::kill`, the signal.
    KillPlane,
    /// `Process::kill` and `Process::end`: it has gone.
    AwaitEnd,
}

/// The steps that the code says are done at `point`. None for those of the store: a store that dies takes all with it, wherever that is.
pub fn steps_at(point: Point) -> &'static [Step] {
    match point {
        Point::BatchTaken => &[Step::TakeBatch(1)],
        Point::FramePlaced => &[Step::PlaceFrame, Step::PlaceSegment, Step::PlaceOwed],
        Point::UsedPublished => &[Step::PublishUsed],
        Point::Interrupted => &[Step::Interrupt],
        Point::BatchCompleted => &[Step::CompleteBatch],
        Point::SegmentReceived => &[Step::ReceiveSegment],
        Point::JournalStored => &JOURNAL,
        Point::AckSent => &[Step::SendAck],
        Point::MessageReceived => &[Step::ReceiveMessage],
        Point::MessageActed => &[Step::Act],
        Point::HandledSent => &[Step::SendHandled],
        Point::ReplayActed => &[Step::ActOnReplay],
        Point::ResumedSent => &[Step::SendResumed],
        Point::PlaneEquipped => &[Step::Equip],
        Point::ReadySent => &[Step::SendReady],
        Point::MarkSet => &[Step::SetMark],
        Point::MessageTaken => &[Step::TakeMessage],
        Point::MessageDelivered => &[Step::DeliverMessage],
        Point::HandledReceived => &[Step::ReceiveHandled],
        Point::ReplyWritten => &[Step::WriteReply],
        Point::ChangesKept => &[Step::KeepChanges],
        Point::SessionKept => &[Step::KeepSession],
        Point::MarkRemoved => &[Step::RemoveMark],
        Point::FrontEndAccepted => &[Step::AcceptFrontEnd],
        Point::ChannelKept => &[Step::KeepChannel],
        Point::ReplaySent => &[Step::SendReplay],
        Point::PlaneStarted => &[Step::StartPlane],
        Point::PlaneKept => &[Step::KeepPlane],
        Point::PlaneAttached => &[Step::AttachPorts],
        Point::PlaneSupplied => &[Step::SupplyPlane],
        Point::ReadyKept => &[Step::KeepReady],
        Point::PlaneGone => &[Step::AwaitEnd],
        Point::ItemKept | Point::BrokerLost | Point::ItemsGiven => &[],
    }
}

/// What the port's thread of a data plane does.
pub const RELAY: [Step; 6] = [
    Step::ReceiveMessage,
    Step::Act,
    Step::ReplyDirectly,
    Step::SendHandled,
    Step::ActOnReplay,
    Step::SendResumed,
];

/// Stores into the journal.
pub const JOURNAL: [Step; 7] = [
    Step::OpenFlow,
    Step::WriteFrame,
    Step::PublishFrame,
    Step::NoteAcked,
    Step::NoteGuest,
    Step::ReleaseFrames,
    Step::CloseFlow,
];
