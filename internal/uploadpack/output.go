package uploadpack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/node"
	"github.com/packhorse-git/packhorse/internal/packsource"
)

// form is how a client takes its pack.
type form struct {
	quiet    bool // no text for people
	sideband protocol.Sideband
}

// send writes the sections and then the pack. Sections are nil if they have been sent, in a session with state: the
// answer then has no length.
func (f *fetch) send(ctx context.Context, spec *packsource.Spec, sections []byte, form form,
	response node.ResponseWriter) error {
	f.outcome.Key = spec.Key().String()
	out := newOutput(response, sections, form, f.start)
	if form.sideband != protocol.NoSideband { // which has no place for keep-alives
		out.keepAlive = f.repo.Policy().KeepAlive
	}
	if err := response.StartBulk(f.keeper == nil || !f.keeper.Has(spec.Key())); err != nil {
		return out.fail(err)
	}
	pack, err := f.source.Open(ctx, spec.For(f.caller))
	if err != nil {
		return out.fail(f.whyNoPack(err))
	}
	defer pack.Close()
	if size := pack.Size(); size >= 0 && form.sideband == protocol.Sideband64k && sections != nil {
		response.SetLength(out.announce(pack.Info(), size))
	}
	begun := time.Now()
	if form.sideband == protocol.Sideband64k {
		err = pack.Send(ctx, out)
	} else {
		err = pack.Send(ctx, &reframer{out: out})
	}
	if err == nil {
		err = out.finish()
	} else if out.err == nil {
		err = out.fail(f.whyNoPack(err))
	} else {
		err = &node.ClientConnError{Err: out.err}
	}
	info := pack.Info()
	o := f.outcome
	o.Pack, o.Objects, o.Bytes, o.Wait = string(info.Result), info.Objects, info.Bytes, info.Wait
	o.ChildCPU, o.ChildMaxRSS = info.Child.User+info.Child.System, info.Child.MaxRSS
	o.FirstByte, o.Copy = out.firstByte, time.Since(begun)
	return err
}

// whyNoPack returns git's error for a pack that could not be made, or a known problem of the repository.
func (f *fetch) whyNoPack(err error) error {
	if fault.KindOf(err) == fault.Internal {
		// what was seen before may be older than the failure; it fails for reasons of its own
		_ = f.repo.Objects.Refresh()
		if missing := f.repo.Objects.MissingAlternate(); missing != nil {
			return fault.Wrap(fault.Corrupt, fault.Message(missing), errors.Join(errors.Unwrap(missing), err))
		}
	}
	return err
}

// output writes the sections and the packfile section to the reply.
type output struct {
	response  node.ResponseWriter
	head      []byte // sections and notes that stand before the first packet of the pack
	form      form
	fixed     bool // the length is announced: nothing but the pack may follow
	start     time.Time
	keepAlive time.Duration
	firstByte time.Duration
	err       error // of the reply
	buf       []byte
}

func newOutput(response node.ResponseWriter, sections []byte, form form, start time.Time) *output {
	if form.sideband == protocol.NoSideband {
		form.quiet = true // there is no place for text
	}
	return &output{response: response, head: sections, form: form, start: start}
}

// announce fixes the length of the answer with a pack of size bytes and returns it. A line for people is put before the
// pack if that comes from the cache.
func (o *output) announce(info packsource.Info, size int64) int64 {
	o.fixed = true
	if !o.form.quiet && info.Result == packsource.Hit {
		note := fmt.Sprintf("Pack of %d objects comes from the cache.\n", info.Objects)
		o.head = pktline.AppendBand(o.head, pktline.BandProgress, note)
	}
	return int64(len(o.head)) + size + int64(len("0000"))
}

// begin sends the sections before the pack.
func (o *output) begin() error {
	if o.head == nil {
		return o.err
	}
	head := o.head
	o.head = nil
	o.firstByte = time.Since(o.start)
	_, err := o.response.Write(head)
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
	n, err := o.response.Write(p)
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
	n, err := io.Copy(o.response, r)
	return n, o.keep(err)
}

func (o *output) flush() error { return o.keep(o.response.Flush()) }

// Progress sends text for people on side-band 2, unless the client wants none or the length of the answer is promised.
func (o *output) Progress(text []byte) error {
	if o.form.quiet || o.fixed {
		return o.err
	}
	return o.small(pktline.BandProgress, text)
}

// KeepAliveAfter is how long the answer may be silent.
func (o *output) KeepAliveAfter() time.Duration { return o.keepAlive }

// KeepAlive sends an empty packet on side-band 1, as git does. An answer whose length is promised needs none: its pack
// is whole.
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
		o.buf = o.appendBand(o.buf, band, text)
	}
	if _, err := o.response.Write(o.buf); err != nil {
		return o.keep(err)
	}
	return o.flush()
}

// finish ends a whole pack.
func (o *output) finish() error {
	if err := o.begin(); err != nil {
		return err
	}
	if o.form.sideband == protocol.NoSideband {
		return nil
	}
	if _, err := o.response.Write(pktline.AppendFlush(nil)); err != nil {
		return &node.ClientConnError{Err: o.keep(err)}
	}
	return nil
}

// fail reports on side-band 3 that the pack is incomplete. If nothing was sent yet, the transport can report it better.
// Without a side-band only a cut connection can report it.
func (o *output) fail(cause error) error {
	if o.head != nil || o.form.sideband == protocol.NoSideband {
		return cause
	}
	message := "packhorse: the pack could not be finished: " + fault.Message(cause) + "\n"
	packet := o.appendBand(nil, pktline.BandError, []byte(message))
	if _, err := o.response.Write(packet); err != nil {
		return &node.ClientConnError{Err: o.keep(err)}
	}
	return &node.ReportedError{Err: cause}
}

// maxMini is the greatest payload of a packet in the small side-band, its band byte excluded.
const maxMini = 1000 - 5

// appendBand appends data as packets that are small enough for the client.
func (o *output) appendBand(b []byte, band pktline.Band, data []byte) []byte {
	if o.form.sideband == protocol.SidebandMini {
		for len(data) > maxMini {
			b = pktline.AppendBand(b, band, data[:maxMini])
			data = data[maxMini:]
		}
	}
	return pktline.AppendBand(b, band, data)
}

// reframer is the output for a client without side-band-64k: it sends the data of the packets in smaller packets, or
// bare. It is not an io.ReaderFrom, so that it gets only whole packets.
type reframer struct {
	out *output
	buf []byte // for the smaller packets that one makes
}

func (r *reframer) Progress(text []byte) error    { return r.out.Progress(text) }
func (r *reframer) KeepAliveAfter() time.Duration { return r.out.KeepAliveAfter() }
func (r *reframer) KeepAlive() error              { return r.out.KeepAlive() }

// Write takes whole packets.
func (r *reframer) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := pktline.ParseLength(p[done:])
		if err == nil && (n < 5 || n > len(p)-done) {
			err = fmt.Errorf("a packet of %d bytes in a pack, of which %d are there", n, len(p)-done)
		}
		if err != nil {
			return done, err
		}
		data := p[done+5 : done+n]
		if r.out.form.sideband == protocol.SidebandMini {
			r.buf = r.out.appendBand(r.buf[:0], pktline.BandData, data)
			data = r.buf
		}
		if _, err := r.out.Write(data); err != nil {
			return done, err
		}
		done += n
	}
	return len(p), nil
}
