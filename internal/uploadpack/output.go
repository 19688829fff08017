package uploadpack

import (
	"fmt"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/packsource"
)

// output writes the sections and the packfile section to the reply.
type output struct {
	reply     protocol.Reply
	head      []byte // sections and notes that stand before the first packet of the pack
	quiet     bool   // no-progress
	fixed     bool   // the length is announced: nothing but the pack may follow
	start     time.Time
	keepAlive time.Duration
	firstByte time.Duration
	err       error // of the reply
	buf       []byte
}

func newOutput(reply protocol.Reply, sections []byte, quiet bool, start time.Time) *output {
	return &output{reply: reply, head: sections, quiet: quiet, start: start}
}

// announce fixes the length of the answer with a pack of size bytes and returns it. A line for people is put before the pack if
// that comes from the cache.
func (o *output) announce(info packsource.Info, size int64) int64 {
	o.fixed = true
	if !o.quiet && info.Result == packsource.Hit {
		note := fmt.Sprintf("Pack of %d objects comes from the cache.\n", info.Objects)
		o.head = pktline.AppendBand(o.head, pktline.BandProgress, note)
	}
	return int64(len(o.head)) + size + int64(len("0000"))
}

// begin sends what stands before the pack.
func (o *output) begin() error {
	if o.head == nil {
		return o.err
	}
	head := o.head
	o.head = nil
	o.firstByte = time.Since(o.start)
	_, err := o.reply.Write(head)
	return o.keep(err)
}

func (o *output) keep(err error) error {
	if o.err == nil {
		o.err = err
	}
	return err
}

// Write sends whole packets of the pack.
func (o *output) Write(p []byte) (int, error) {
	if err := o.begin(); err != nil {
		return 0, err
	}
	n, err := o.reply.Write(p)
	return n, o.keep(err)
}

// ReadFrom hands a part of a file on whole.
func (o *output) ReadFrom(r io.Reader) (int64, error) {
	if err := o.begin(); err != nil {
		return 0, err
	}
	if err := o.flush(); err != nil {
		return 0, err
	}
	n, err := io.Copy(o.reply, r)
	return n, o.keep(err)
}

func (o *output) flush() error { return o.keep(o.reply.Flush()) }

// Progress sends text for people on side-band 2, unless the client wants none or the length of the answer is promised.
func (o *output) Progress(text []byte) error {
	if o.quiet || o.fixed {
		return o.err
	}
	return o.small(pktline.BandProgress, text)
}

// KeepAliveAfter is how long the answer may be silent.
func (o *output) KeepAliveAfter() time.Duration { return o.keepAlive }

// KeepAlive sends an empty packet on side-band 1, as git does. An answer whose length is promised needs none: its pack is whole.
func (o *output) KeepAlive() error {
	if o.fixed {
		return o.err
	}
	return o.small(pktline.BandData, nil)
}

func (o *output) small(band pktline.Band, text []byte) error {
	if err := o.begin(); err != nil {
		return err
	}
	o.buf = o.buf[:0]
	if len(text) == 0 {
		o.buf = pktline.Append(o.buf, []byte{byte(band)})
	} else {
		o.buf = pktline.AppendBand(o.buf, band, text)
	}
	if _, err := o.reply.Write(o.buf); err != nil {
		return o.keep(err)
	}
	return o.flush()
}

// finish ends a whole pack.
func (o *output) finish() error {
	if err := o.begin(); err != nil {
		return err
	}
	if _, err := o.reply.Write(pktline.AppendFlush(nil)); err != nil {
		return &protocol.BrokenReply{Err: o.keep(err)}
	}
	return nil
}

// fail tells the client that the pack will not be whole, on side-band 3. Nothing was sent yet: the transport may say it
// better.
func (o *output) fail(cause error) error {
	if o.head != nil {
		return cause
	}
	message := "packhorse: the pack could not be finished: " + fault.Message(cause) + "\n"
	packet := pktline.AppendBand(nil, pktline.BandError, message)
	if _, err := o.reply.Write(packet); err != nil {
		return &protocol.BrokenReply{Err: o.keep(err)}
	}
	return &protocol.ToldClient{Err: cause}
}
