package receivepack

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/node"
)

const (
	// maxReport is the maximum size of a report in bytes. It has a line for each command, and these are limited too.
	maxReport = 2 * maxHead
	// maxWaiting is the maximum output of Git in bytes while the client still sends. More is dropped.
	maxWaiting = 256 << 10
	// maxFailure is the maximum length in bytes of an error message for the client.
	maxFailure = 1000
)

// output passes on the output of Git, except the report. While Git runs, hookText may be called concurrently with copy.
type output struct {
	mu       sync.Mutex // guards response, waiting and begun while Git runs
	response node.ResponseWriter
	sideband bool            // the client accepts sidebands
	report   bool            // the client wants a report
	after    <-chan struct{} // nothing is written before this is closed; may be nil
	waiting  []byte          // packets until then
	kept     []byte          // the report as packets, without sidebands
	begun    bool            // something was written
	hidden   []string        // paths that are removed from text, each with a slash at its end
	copyTo   io.Writer       // gets the text too; may be nil
	tail     []byte          // text that may be the start of a hidden path
}

// copy passes on the output of Git to its end.
func (o *output) copy(stdout io.Reader) error {
	packets := pktline.NewReader(stdout)
	for {
		kind, data, err := packets.Next()
		if err == io.EOF {
			return o.text(o.tail)
		} else if err != nil {
			return err
		}
		if kind != pktline.Data || len(data) == 0 {
			if !o.sideband {
				o.kept = append(o.kept, "0000"...)
			}
			continue // finish sends the last flush packet
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
		return o.gitText(data[1:])
	default: // keepalive packets
		return o.pass(data)
	}
	if len(o.kept) > maxReport {
		return fault.New(fault.Internal, "report of git receive-pack: too long")
	}
	return nil
}

// gitText sends text of Git without the hidden paths. Git writes absolute paths, and its text may end anywhere.
func (o *output) gitText(b []byte) error {
	if len(o.hidden) == 0 {
		return o.text(b)
	}
	b = o.withoutHidden(append(o.tail, b...))
	keep := 0
	for _, path := range o.hidden {
		n := min(len(b), len(path)-1)
		for !strings.HasPrefix(path, string(b[len(b)-n:])) {
			n--
		}
		keep = max(keep, n)
	}
	o.tail = bytes.Clone(b[len(b)-keep:])
	return o.text(b[:len(b)-keep])
}

func (o *output) withoutHidden(b []byte) []byte {
	for _, path := range o.hidden {
		b = bytes.ReplaceAll(b, []byte(path), nil)
	}
	return b
}

// hookText sends a line of a hook whose output Git does not send, if the client accepts sidebands.
func (o *output) hookText(line string) error {
	if !o.sideband {
		return nil
	}
	return o.text(o.withoutHidden([]byte(line + "\n")))
}

// text sends text in packets.
func (o *output) text(b []byte) error {
	if o.copyTo != nil {
		_, _ = o.copyTo.Write(b)
	}
	for piece := range slices.Chunk(b, readSize/2) {
		if err := o.pass(append([]byte{byte(pktline.BandProgress)}, piece...)); err != nil {
			return err
		}
	}
	return nil
}

// pass sends a packet now, or when the client has sent everything.
func (o *output) pass(data []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
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

// say sends a message to the user, if the client accepts sidebands.
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
	if err := o.response.Flush(); err != nil {
		return &node.ClientConnError{Err: err}
	}
	return nil
}

func (o *output) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	o.begun = true
	if _, err := o.response.Write(b); err != nil {
		if _, isFault := errors.AsType[*fault.Error](err); isFault {
			return err // the request is invalid
		}
		return &node.ClientConnError{Err: err}
	}
	return nil
}

// finish sends the report and the last flush packet.
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

// fail sends an error to the client instead of a report, if it accepts sidebands. If nothing was written yet, an error
// after which the client may try again is returned to the transport. Git shows only its status code, but other clients
// act on it.
func (o *output) fail(err error) error {
	canRetry := fault.RetryAfter(err) > 0 || fault.Is(err, fault.Exhausted) || fault.Is(err, fault.Cancelled)
	if _, broken := errors.AsType[*node.ClientConnError](err); broken || !o.sideband || !o.begun && canRetry {
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
