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
	"github.com/packhorse-git/packhorse/internal/node/packsource"
)

// packFormat is the form in which a client receives its pack.
type packFormat struct {
	quiet    bool // without progress messages
	sideband protocol.Sideband
}

// send writes the sections and then the pack. In a stateful session the sections were sent before and are nil, and the
// response has no length.
func (f *fetch) send(ctx context.Context, spec *packsource.Spec, sections []byte, form packFormat) error {
	f.outcome.Fetch.Key = spec.Key().String()
	isCold := f.keeper == nil || !f.keeper.Has(spec.Key())
	if isCold {
		if err := f.hold(ctx, sections, form); err != nil {
			return f.fail(err)
		}
	}
	isEarly := f.out != nil
	if !isEarly {
		f.out = f.newOutput(sections, form)
	}
	out := f.out
	if err := f.startBulk(isCold); err != nil {
		return out.fail(err)
	}
	pack, err := f.source.Open(ctx, spec.For(f.caller))
	if err != nil {
		return out.fail(f.whyNoPack(err))
	}
	defer pack.Close()
	f.release() // the source holds the objects as long as it needs them
	if size := pack.Size(); size >= 0 && form.sideband == protocol.Sideband64k && sections != nil && !isEarly {
		f.response.SetLength(out.announce(pack.Info(), size))
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
	o := &f.outcome.Fetch
	o.Pack, o.Objects, o.Bytes, o.Wait = string(info.Result), info.Objects, info.Bytes, info.Wait
	o.Made = node.Made{Source: info.Made.Source, Fallback: info.Made.Fallback, Select: info.Made.Select,
		Write: info.Made.Write}
	o.FirstByte, o.Copy = out.firstByte, time.Since(begun)
	return err
}

// whyNoPack returns git's error for a pack that could not be made, or a known problem of the repository.
func (f *fetch) whyNoPack(err error) error {
	if fault.KindOf(err) == fault.Internal {
		_ = f.repo.Objects.Refresh() // the known alternates may be out of date; a failure here is not the cause
		if missing := f.repo.Objects.MissingAlternate(); missing != nil {
			return fault.Wrap(fault.Corrupt, fault.Message(missing), errors.Join(errors.Unwrap(missing), err))
		}
	}
	return err
}

// output writes the sections and the packfile section to the response.
type output struct {
	response  node.ResponseWriter
	head      []byte // sections and messages before the first packet of the pack; nil: written
	notice    []byte // packets of a message that follows the head
	form      packFormat
	fixed     bool // the length was announced: only the pack may follow
	start     time.Time
	keepAlive time.Duration
	firstByte time.Duration
	err       error // of the response
	buf       []byte
}

func newOutput(response node.ResponseWriter, sections []byte, form packFormat, start time.Time) *output {
	if form.sideband == protocol.NoSideband {
		form.quiet = true // messages need a side-band
	}
	return &output{response: response, head: sections, form: form, start: start}
}

func (f *fetch) newOutput(sections []byte, form packFormat) *output {
	out := newOutput(f.response, sections, form, f.start)
	out.addNotice(f.notice)
	if form.sideband != protocol.NoSideband { // keep-alives need a side-band
		out.keepAlive = f.repo.Policy().KeepAlive
	}
	return out
}

// addNotice adds a line for the client's user, before the pack. It is not about progress: Git shows it in the logs of
// CI jobs, too, although it asks for no progress without a terminal.
func (o *output) addNotice(text string) {
	if text != "" && o.form.sideband != protocol.NoSideband {
		o.notice = o.appendBand(nil, pktline.BandProgress, []byte(text+"\n"))
	}
}

// announce fixes the length of the response with a pack of size bytes, and returns it. If the pack comes from the
// cache, a message about that precedes it.
func (o *output) announce(info packsource.Info, size int64) int64 {
	o.fixed = true
	if !o.form.quiet && info.Result == packsource.Hit {
		note := fmt.Sprintf("Pack of %d objects comes from the cache.\n", info.Objects)
		o.head = pktline.AppendBand(o.head, pktline.BandProgress, note)
	}
	return int64(len(o.head)) + int64(len(o.notice)) + size + int64(len("0000"))
}

// writeHead sends the sections before the pack, unless they were sent.
func (o *output) writeHead() error {
	if o.head == nil && o.notice == nil {
		return o.err
	}
	head := append(o.head, o.notice...)
	o.head, o.notice = nil, nil
	o.firstByte = time.Since(o.start)
	_, err := o.response.Write(head)
	return o.keepError(err)
}

func (o *output) keepError(err error) error {
	if o.err == nil {
		o.err = err
	}
	return err
}

// Write sends whole packets of the pack.
func (o *output) Write(p []byte) (int, error) {
	if err := o.writeHead(); err != nil {
		return 0, err
	}
	n, err := o.response.Write(p)
	return n, o.keepError(err)
}

// ReadFrom passes a part of a file to the response, which can have the kernel copy it.
func (o *output) ReadFrom(r io.Reader) (int64, error) {
	if err := o.writeHead(); err != nil {
		return 0, err
	}
	if err := o.flush(); err != nil {
		return 0, err
	}
	n, err := io.Copy(o.response, r)
	return n, o.keepError(err)
}

func (o *output) flush() error { return o.keepError(o.response.Flush()) }

// Progress sends a message on side-band 2, unless the client wants none or the length was announced.
func (o *output) Progress(text []byte) error {
	if o.form.quiet || o.fixed {
		return o.err
	}
	return o.writeSmall(pktline.BandProgress, text)
}

// KeepAliveAfter returns the time without output after which a keep-alive is due.
func (o *output) KeepAliveAfter() time.Duration { return o.keepAlive }

// KeepAlive sends an empty packet on side-band 1, as git does. It does nothing if the length was announced, because
// then the pack is complete.
func (o *output) KeepAlive() error {
	if o.fixed {
		return o.err
	}
	return o.writeSmall(pktline.BandData, nil)
}

func (o *output) writeSmall(band pktline.Band, text []byte) error {
	if err := o.writeHead(); err != nil {
		return err
	}
	o.buf = o.buf[:0]
	if len(text) == 0 {
		o.buf = pktline.Append(o.buf, []byte{byte(band)})
	} else {
		o.buf = o.appendBand(o.buf, band, text)
	}
	if _, err := o.response.Write(o.buf); err != nil {
		return o.keepError(err)
	}
	return o.flush()
}

// finish ends a complete pack.
func (o *output) finish() error {
	if err := o.writeHead(); err != nil {
		return err
	}
	if o.form.sideband == protocol.NoSideband {
		return nil
	}
	if _, err := o.response.Write(pktline.AppendFlush(nil)); err != nil {
		return &node.ClientConnError{Err: o.keepError(err)}
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
		return &node.ClientConnError{Err: o.keepError(err)}
	}
	return &node.ReportedError{Err: cause}
}

// maxMini is the maximum payload of a packet in the small side-band, without its band byte.
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

// reframer is the output for a client without side-band-64k. It splits packets into smaller ones, or sends their data
// without packets. It is not an io.ReaderFrom, so that it gets only whole packets.
type reframer struct {
	out *output
	buf []byte // smaller packets
}

func (r *reframer) Progress(text []byte) error    { return r.out.Progress(text) }
func (r *reframer) KeepAliveAfter() time.Duration { return r.out.KeepAliveAfter() }
func (r *reframer) KeepAlive() error              { return r.out.KeepAlive() }

// Write takes whole packets.
func (r *reframer) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		n, err := pktline.ParseLength(p[done:])
		if err == nil && (n < 5 || n > len(p)-done) {
			err = fmt.Errorf("pack source: invalid packet: got %d of %d bytes", len(p)-done, n)
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
