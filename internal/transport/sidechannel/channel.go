package sidechannel

// Channel is a channel during one transfer. Send and its Sender are for one goroutine at a time, and so are Receive and
// its Receiver. The two directions are independent. Abort is safe for concurrent use.
type Channel struct {
	line     *line
	transfer uint64
	sender   Sender
	receiver Receiver

	// Guarded by line.mu:
	released bool
	sending  direction
	getting  direction
	due      bool // the peer has sent everything
	waiting  bool // for a header of the peer

	handed, taken int64 // bytes of the file that the peer has to send, and that it has sent
	refused       error // why it cannot send them
}

// direction is the state of one direction of a transfer.
type direction uint8

const (
	untouched direction = iota
	open                // begun, or claimed
	ended               // with a good END
	failed
)

// Name returns the channel's name, with which the node claims it.
func (c *Channel) Name() string { return c.line.name }

// Transfer returns the number of this transfer on the channel.
func (c *Channel) Transfer() uint64 { return c.transfer }

// Send begins our direction of length bytes; -1: unknown. It is called at most once.
func (c *Channel) Send(length int64) *Sender {
	c.line.mu.Lock()
	defer c.line.mu.Unlock()
	if c.sending != untouched {
		panic("sidechannel: Send called twice")
	}
	c.sending = open
	c.sender.length = max(length, unknown)
	return &c.sender
}

// Receive returns the peer's direction.
func (c *Channel) Receive() *Receiver { return &c.receiver }

// Due is called when the peer has reported by the control call that it has sent all. From then on a header that does
// not come within the limit (Stall) closes the channel. Safe for concurrent use.
func (c *Channel) Due() {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != c || c.released || l.closed {
		return
	}
	if c.due = true; c.waiting {
		l.limitRead(l.limits.stall)
	}
}

// await begins to wait for the peer's next header. The caller holds line.mu, also for arrive.
func (c *Channel) await() {
	if c.waiting = true; c.due {
		c.line.limitRead(c.line.limits.stall)
	}
}

// arrive ends the wait that await began.
func (c *Channel) arrive() {
	if c.waiting = false; c.due {
		c.line.limitRead(0)
	}
}

// Abort cancels the transfer and closes the channel. Operations that wait for it fail with Cancelled. After Release it
// does nothing.
func (c *Channel) Abort() {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running == c && !c.released {
		l.close(closeCancelled, nil)
	}
}

// Release ends the transfer. The channel is reused if both directions ended well. If ours was empty, Release sends its
// END. If only the peer's acknowledgement is missing, the channel waits for it in the background, for a limited time.
// Otherwise it is closed. A second call does nothing. The Sender and the Receiver must not be used afterwards.
func (c *Channel) Release() {
	l := c.line
	c.acknowledge()
	c.receiver.dropFile()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.released || l.closed {
		c.released = true
		return
	}
	c.released = true
	c.sender.drop()
	switch {
	case c.sending == ended && c.getting == ended:
		l.settle()
	case c.sending == ended && c.getting == untouched && l.first == nil:
		l.limit(l.limits.stall)
	case c.sending == failed || c.getting == failed:
		l.close(closeFailed, nil)
	default:
		l.close(closeUnfinished, nil)
	}
}

// acknowledge ends our direction if it is empty and the peer's has ended well.
func (c *Channel) acknowledge() {
	l := c.line
	l.mu.Lock()
	due := !c.released && !l.closed && c.getting == ended && c.sending == untouched
	l.mu.Unlock()
	if due {
		_ = c.Send(0).End(nil)
	}
}

// firstArrived checks the peer's first header. The caller holds line.mu.
func (c *Channel) firstArrived() {
	h := c.line.first
	if h.kind == end && h.status == 0 {
		c.getting = ended
	}
	switch {
	case !c.released:
	case c.getting == ended:
		c.line.settle()
	default:
		c.line.close(closeUnfinished, nil) // the peer sends unexpected bytes
	}
}

// usable returns why the channel cannot be used for this transfer any more, or nil. It is checked before each step.
func (c *Channel) usable() error {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.running == c && l.closed:
		return l.cause
	case l.running != c || c.released:
		return closeError(closeUnfinished, nil)
	}
	return nil
}

// broken closes the channel after an error of its connection, and returns the error for its users.
func (c *Channel) broken(why reason, err error) error {
	l := c.line
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != c {
		return closeError(closeUnfinished, err)
	}
	l.close(why, err)
	return l.cause
}

// set sets the state of a direction.
func (c *Channel) set(d *direction, to direction) {
	c.line.mu.Lock()
	*d = to
	c.line.mu.Unlock()
}
