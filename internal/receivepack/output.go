package receivepack

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

const (
	// maxReport bounds a report in bytes: a line for each of the commands, which are bounded too.
	maxReport = 2 * maxHead
	// maxWaiting bounds what git says to people while the client still sends; more is dropped.
	maxWaiting = 256 << 10
	// maxFailure bounds in bytes what a client is told of why there is no report.
	maxFailure = 1000
)

// output passes on what git says, but keeps its report back.
type output struct {
	reply    node.ResponseWriter
	sideband bool            // the client takes packets with a band
	report   bool            // the client takes a report
	after    <-chan struct{} // nil, or nothing is written before it is closed
	waiting  []byte          // packets until then
	kept     []byte          // the report: packets, without a band
	begun    bool            // something was written
	hidden   []string        // what no text of git's shows: the paths of the repository and of those that it borrows from, each with a slash
	heard    io.Writer       // unless nil, gets that text too
	tail     []byte          // of such text: the begin of one of these, if it comes
}

// copy reads git's output to its end.
func (o *output) copy(stdout io.Reader) error {
	packets := pktline.NewReader(stdout)
	for {
		kind, data, err := packets.Next()
		if err == io.EOF {
			return o.pieces(o.tail)
		} else if err != nil {
			return err
		}
		if kind != pktline.Data || len(data) == 0 {
			if !o.sideband {
				o.kept = append(o.kept, "0000"...)
			}
			continue // the flush at the end is ours to send
		}
		if err := o.packet(data); err != nil {
			return err
		}
	}
}

func (o *output) packet(data []byte) error {
	band := pktline.Band(data[0])
	switch {
	case !o.sideband:
		o.kept = pktline.Append(o.kept, data)
	case band == pktline.BandData && len(data) > 1:
		o.kept = append(o.kept, data[1:]...)
	case band == pktline.BandProgress && len(data) > 1:
		return o.text(data[1:])
	default: // packets that only tell that git is still at work
		return o.pass(data)
	}
	if len(o.kept) > maxReport {
		return fault.New(fault.Internal, "the report of a push is too long")
	}
	return nil
}

// text sends text for people, but for where repositories are: git names its files by their whole paths, and cuts its text anywhere.
func (o *output) text(b []byte) error {
	if len(o.hidden) == 0 {
		return o.pieces(b)
	}
	b = append(o.tail, b...)
	for _, path := range o.hidden {
		b = bytes.ReplaceAll(b, []byte(path), nil)
	}
	keep := 0
	for _, path := range o.hidden {
		n := min(len(b), len(path)-1)
		for !strings.HasPrefix(path, string(b[len(b)-n:])) {
			n--
		}
		keep = max(keep, n)
	}
	o.tail = bytes.Clone(b[len(b)-keep:])
	return o.pieces(b[:len(b)-keep])
}

// pieces sends text in packets.
func (o *output) pieces(b []byte) error {
	if o.heard != nil {
		_, _ = o.heard.Write(b)
	}
	for piece := range slices.Chunk(b, readSize/2) {
		if err := o.pass(append([]byte{byte(pktline.BandProgress)}, piece...)); err != nil {
			return err
		}
	}
	return nil
}

// pass sends a packet at once, or as soon as the client has sent all.
func (o *output) pass(data []byte) error {
	if o.after != nil {
		select {
		case <-o.after:
		default:
			if len(o.waiting)+len(data) < maxWaiting && len(data) > 1 {
				o.waiting = pktline.Append(o.waiting, data)
			}
			return nil
		}
	}
	o.waiting = pktline.Append(o.waiting, data)
	return o.flush()
}

// say sends text for people, if the client has a place for it.
func (o *output) say(text string) error {
	if !o.sideband || text == "" {
		return nil
	}
	o.waiting = pktline.AppendBand(o.waiting, pktline.BandProgress, text)
	return o.flush()
}

func (o *output) flush() error {
	b := o.waiting
	o.waiting = nil
	if err := o.write(b); err != nil {
		return err
	}
	if err := o.reply.Flush(); err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

func (o *output) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	o.begun = true
	if _, err := o.reply.Write(b); err != nil {
		if _, told := errors.AsType[*fault.Error](err); told {
			return err // the request turned out to be damaged
		}
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// finish sends the report and the end.
func (o *output) finish() error {
	b := o.waiting
	o.waiting = nil
	switch {
	case o.sideband:
		if o.report {
			b = pktline.AppendBand(b, pktline.BandData, o.kept)
		}
		b = pktline.AppendFlush(b)
	case o.report:
		b = append(b, o.kept...)
	}
	return o.write(b)
}

// fail tells the client why there is no report, if the answer has a place for it. Before the answer has begun, the transport tells it instead
// that it may try again later: git shows no more than the number of a status, but other clients act on it.
func (o *output) fail(err error) error {
	later := fault.RetryAfter(err) > 0 || fault.Is(err, fault.Exhausted) || fault.Is(err, fault.Cancelled)
	if _, broken := errors.AsType[*node.ClientConnError](err); broken || !o.sideband || !o.begun && later {
		return err
	}
	message := clean(fault.Message(err), maxFailure)
	b := pktline.AppendBand(o.waiting, pktline.BandError, message+"\n")
	o.waiting = nil
	if broken := o.write(b); broken != nil {
		return broken
	}
	return &node.ReportedError{Err: err}
}
