package origin

import (
	"bytes"
	"fmt"
	"io"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// FetchRequest is a request for a pack.
type FetchRequest struct {
	Format git.ObjectFormat
	Wants  []git.ObjectID
	Haves  []git.ObjectID // the origin ignores unknown ones
	// Progress is called with the text that the origin sends to people, in pieces as they arrive. It is called from
	// Pack.Read and does not keep its argument. Nil means that the origin sends none.
	Progress func(text []byte)
}

// Pack is a pack as it arrives. Read returns io.EOF only if the origin has ended the pack. It is not safe for
// concurrent use.
type Pack struct {
	from     io.ReadCloser
	lines    *pktline.Reader
	version  protocol.Version
	progress func(text []byte)
	begun    bool
	rest     []byte // of the current packet
	err      error
}

// newPack returns the pack in a response that lines reads from r.
func newPack(r io.ReadCloser, lines *pktline.Reader, version protocol.Version, progress func(text []byte)) *Pack {
	return &Pack{from: r, lines: lines, version: version, progress: progress}
}

// Begin reads up to the pack, and returns the error that the origin reports instead. Read does so if Begin was not
// called.
func (p *Pack) Begin() error {
	if !p.begun {
		p.begun = true
		if p.version == protocol.V2 {
			p.err = p.beginV2()
		} else {
			p.err = p.beginV0()
		}
	}
	return p.err
}

// beginV2 reads the sections before the pack (gitprotocol-v2(5), "fetch"). After "done" and without a shallow boundary
// there are none.
func (p *Pack) beginV2() error {
	line, end, err := textLine(p.lines)
	switch {
	case err != nil:
		return err
	case !end && line == "packfile":
		return nil
	case !end && line == "shallow-info":
		return errShallow
	}
	return fmt.Errorf("%w: no pack but %.100q", errInvalid, line)
}

// maxAcks is the maximum number of acknowledgments before a pack. Servers send one or two for each have.
const maxAcks = 1 << 20

// beginV0 reads the acknowledgments before the pack (gitprotocol-pack(5), "Packfile Negotiation"). The request has
// "done", so that their kinds do not matter.
func (p *Pack) beginV0() error {
	for range maxAcks {
		kind, payload, err := p.lines.Next()
		line := bytes.TrimSuffix(payload, []byte("\n"))
		switch {
		case err != nil:
			return unexpected(err)
		case kind != pktline.Data:
			return fmt.Errorf("%w: no pack but a %s packet", errInvalid, kind)
		case bytes.HasPrefix(line, []byte("ERR ")):
			return reported(line[len("ERR "):])
		case bytes.HasPrefix(line, []byte("shallow ")):
			return errShallow
		case !bytes.HasPrefix(line, []byte("ACK ")) && !bytes.Equal(line, []byte("NAK")):
			return p.packet(kind, payload)
		}
	}
	return fmt.Errorf("%w: no pack but acknowledgments", errInvalid)
}

// Read implements io.Reader.
func (p *Pack) Read(b []byte) (int, error) {
	for p.Begin() == nil && len(p.rest) == 0 {
		kind, payload, err := p.lines.Next()
		if err != nil {
			p.err = unexpected(err)
		} else {
			p.err = p.packet(kind, payload)
		}
	}
	if p.err != nil {
		return 0, p.err
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// packet takes a packet of a side-band. Its error is io.EOF at the end of the pack.
func (p *Pack) packet(kind pktline.Type, payload []byte) error {
	switch {
	case kind == pktline.Flush:
		return io.EOF
	case kind != pktline.Data || len(payload) == 0:
		return fmt.Errorf("%w: a %s packet of %d bytes in a pack", errInvalid, kind, len(payload))
	}
	switch pktline.Band(payload[0]) {
	case pktline.BandData:
		p.rest = payload[1:]
	case pktline.BandProgress:
		if p.progress != nil {
			p.progress(payload[1:])
		}
	case pktline.BandError:
		return reported(payload[1:])
	default:
		return fmt.Errorf("%w: side-band %d", errInvalid, payload[0])
	}
	return nil
}

// Close ends the transfer.
func (p *Pack) Close() error { return p.from.Close() }
