// The states of the TCP offload, in words and colours. docs/src/guide/offload.md says the same at length.

export const TX = {
  OFFLINE: { text: "off the offload", colour: "--state-offline", meaning: "passed through: the guest's own congestion control decides" },
  ACTIVE: { text: "active", colour: "--state-active", meaning: "the switch runs congestion control, and lets the guest send ahead" },
  NO_BUFFER: { text: "no buffer", colour: "--state-no-buffer", meaning: "the budget or the receiver's window is used up: the guest may not send further ahead" },
  PACKET_LOSS: { text: "repairing a loss", colour: "--state-loss", meaning: "the switch sends lost bytes again; the guest hears nothing of it" },
  LEAVING: { text: "leaving", colour: "--state-leaving", meaning: "what is stored is being sent; nothing new is granted" },
};

export const RX = {
  OFFLINE: "the guest acknowledges by itself",
  ACTIVE: "the switch acknowledges in-order data for the guest",
  NO_BUFFER: "there is no room to keep more for the guest, or its window is full",
  UNEXPECTED_SEQ: "data came out of order: the guest acknowledges until it has caught up",
};

export const REASON = {
  opened: "since it was set up",
  disabled: "the offload is off for the port",
  no_room: "the budget had no room when it could have been taken over",
  budget_used: "the budget is used up",
  room_again: "there is room in the budget again",
  loss: "segments were lost",
  timeout: "the retransmission timer expired",
  recovered: "all that was lost has arrived",
  draining: "the port is being drained",
  gap: "the guest has sent bytes past the switch",
  idle: "it was not used for long",
  used_again: "it was about to leave, and is used again",
  adopted: "an earlier data plane had acknowledged bytes for it",
  unknown_option: "its handshake has a TCP option that the switch does not know",
  syn_data: "its SYN carries data",
  accurate_ecn: "both sides agreed on AccECN",
  partial_handshake: "the switch has not seen all of its handshake",
  forwarded: "the guest forwards it for another host",
};
