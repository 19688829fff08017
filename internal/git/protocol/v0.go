package protocol

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Features are the capabilities of a server in versions 0 and 1 (gitprotocol-capabilities(5)).
type Features struct {
	Agent     string
	Format    git.ObjectFormat
	SessionID string      // "" for none
	Head      git.RefName // what HEAD points at; "" if it is detached or unborn

	AllowTip, AllowReachable, NoDone, Filter bool
}

// String lists the capabilities in git's order.
func (f Features) String() string {
	var b strings.Builder
	b.WriteString("multi_ack thin-pack side-band side-band-64k ofs-delta shallow deepen-since deepen-not " +
		"deepen-relative no-progress include-tag multi_ack_detailed")
	for _, c := range []struct {
		on   bool
		text string
	}{
		{f.AllowTip, "allow-tip-sha1-in-want"}, {f.AllowReachable, "allow-reachable-sha1-in-want"},
		{f.NoDone, "no-done"},
		{f.Head != "", "symref=HEAD:" + string(f.Head)}, {f.Filter, "filter"},
		{f.SessionID != "", "session-id=" + f.SessionID},
		{true, "object-format=" + f.Format.String()}, {true, "agent=" + f.Agent},
	} {
		if c.on {
			b.WriteByte(' ')
			b.WriteString(c.text)
		}
	}
	return b.String()
}

// AppendAdvertised appends a line of the reference discovery (gitprotocol-pack(5), "Reference Discovery"): a ref and,
// if it has a peeled value, another line for that. Features, if any, go with the first line of all.
func AppendAdvertised(b []byte, ref RefLine, features string) []byte {
	b, start := pktline.Start(b)
	b = append(ref.ID.AppendHex(b), ' ')
	b = append(b, ref.Name...)
	if features != "" {
		b = append(append(b, 0), features...)
	}
	b = pktline.Finish(append(b, '\n'), start)
	if ref.Peeled.IsZero() {
		return b
	}
	b, start = pktline.Start(b)
	b = append(ref.Peeled.AppendHex(b), ' ')
	b = append(b, ref.Name...)
	return pktline.Finish(append(b, "^{}\n"...), start)
}

// AppendNoRefs appends the advertisement of a repository without refs (gitprotocol-pack(5), "no-refs").
func AppendNoRefs(b []byte, format git.ObjectFormat, features string) []byte {
	none := git.RawObjectID(make([]byte, format.Size()))
	return AppendAdvertised(b, RefLine{Name: "capabilities^{}", ID: none}, features)
}

// Acks is the form of acknowledgments that a client of version 0 or 1 requests
// (gitprotocol-capabilities(5), "multi_ack").
type Acks uint8

const (
	SingleAck        Acks = iota // the first common commit
	MultiAck                     // each of them, as "continue"
	MultiAckDetailed             // each of them, as "common" or "ready"
)

// Sideband is the form of a pack (gitprotocol-capabilities(5), "side-band, side-band-64k"). In version 2 it is always
// Sideband64k.
type Sideband uint8

const (
	NoSideband   Sideband = iota // the bare pack, to the end of the stream
	SidebandMini                 // in packets of up to 1,000 bytes
	Sideband64k                  // in packets of up to 65,520 bytes
)

// Needs is the first part of a fetch in versions 0 and 1: the client's wants, its shallow boundary, and options for the
// response (gitprotocol-pack(5), "Packfile Negotiation"). The haves follow it.
type Needs struct {
	Fetch // Haves, WantRefs, Done, WaitForDone and SidebandAll are of version 2 only

	Agent, SessionID string // fit for a log
	Acks             Acks
	NoDone           bool // the pack may follow "ready" at once, without a "done" of the client
	Sideband         Sideband
	MayFilter        bool // the client knows the capability "filter"
}

// ReadNeeds reads the offered capabilities that a client needs, up to the flush packet at their end. As in git, any
// other special packet ends them as well.
func ReadNeeds(r *pktline.Reader, format git.ObjectFormat, offer Offer, limits Limits) (*Needs, error) {
	needs := &Needs{}
	p := &parser{r: r, limits: limits.withDefaults(), format: format, offer: offer, req: &Request{Fetch: &needs.Fetch}}
	for {
		t, line, err := p.next()
		if err != nil {
			return nil, err
		}
		if t != pktline.Data {
			break
		}
		if err := p.need(needs, cString(line)); err != nil {
			return nil, err
		}
	}
	needs.Wants, needs.Shallow = SortIDs(needs.Wants), SortIDs(needs.Shallow)
	return needs, nil
}

// cString is a line up to a zero byte: git, which is written in C, sees no more of it.
func cString(line []byte) []byte {
	line, _, _ = bytes.Cut(line, []byte{0})
	return line
}

func (p *parser) need(needs *Needs, line []byte) error {
	key, value, _ := bytes.Cut(line, []byte(" "))
	switch string(key) {
	case "want":
		id, features := p.cutID(value)
		if err := p.addToSet(&needs.Wants, &p.wants, id, p.limits.Wants, "want"); err != nil {
			return err
		}
		needs.features(features)
		return nil
	case "shallow":
		id, _ := p.cutID(value)
		return p.addToSet(&needs.Shallow, &p.shallow, id, p.limits.Shallow, "shallow")
	case "deepen", "deepen-since", "deepen-not", "filter":
		if string(key) == "filter" && !(needs.MayFilter && p.offer.Filter) {
			return invalid("filtering capability not negotiated")
		}
		if len(value) > 0 {
			return p.fetchValue(&needs.Fetch, key, value, line)
		}
	}
	return invalid("expected to get object ID, not %.100q", line)
}

// cutID takes an object ID from the front of s. The rest matters only after a want.
func (p *parser) cutID(s []byte) (id, rest []byte) {
	n := min(len(s), p.format.HexSize())
	return s[:n], s[n:]
}

// features parses the capabilities of the client. They are after the first want, but git accepts them after any.
func (n *Needs) features(list []byte) {
	acks, sideband := SingleAck, NoSideband
	for feature := range bytes.FieldsSeq(list) {
		name, value, _ := bytes.Cut(feature, []byte("="))
		switch string(name) {
		case "multi_ack":
			acks = max(acks, MultiAck)
		case "multi_ack_detailed":
			acks = MultiAckDetailed
		case "side-band":
			sideband = max(sideband, SidebandMini)
		case "side-band-64k":
			sideband = Sideband64k
		case "no-done":
			n.NoDone = true
		case "thin-pack":
			n.ThinPack = true
		case "ofs-delta":
			n.OfsDelta = true
		case "no-progress":
			n.NoProgress = true
		case "include-tag":
			n.IncludeTag = true
		case "deepen-relative":
			n.DeepenRelative = true
		case "filter":
			n.MayFilter = true
		case "agent":
			n.Agent = sanitize(value)
		case "session-id":
			n.SessionID = sanitize(value)
		}
	}
	if acks != SingleAck {
		n.Acks = acks
	}
	if sideband != NoSideband {
		n.Sideband = sideband
	}
}

// Turn is a message of a client of version 0 or 1 after its needs.
type Turn uint8

const (
	TurnHave  Turn = iota // it has a commit
	TurnFlush             // it waits for a response
	TurnDone              // it wants the pack now
	TurnEnd               // it ends without any request
)

// HaveReader reads the second part of a fetch in versions 0 and 1.
type HaveReader struct {
	parser parser
	lines  int
	begun  bool
}

// NewHaveReader reads from where ReadNeeds ended.
func NewHaveReader(r *pktline.Reader, format git.ObjectFormat, limits Limits) *HaveReader {
	return &HaveReader{parser: parser{r: r, limits: limits.withDefaults(), format: format}}
}

// Next reads one line; the ID is a have's.
func (h *HaveReader) Next() (Turn, git.ObjectID, error) {
	t, line, err := h.parser.r.Line()
	if err != nil {
		if !h.begun && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
			return TurnEnd, git.ObjectID{}, nil
		}
		return 0, git.ObjectID{}, unreadable(err)
	}
	h.begun = true
	if t != pktline.Data {
		return TurnFlush, git.ObjectID{}, nil
	}
	line = cString(line)
	if string(line) == "done" {
		return TurnDone, git.ObjectID{}, nil
	}
	value, ok := bytes.CutPrefix(line, []byte("have "))
	if !ok {
		return 0, git.ObjectID{}, invalid("expected SHA1 list, got %.100q", line)
	}
	if h.lines++; h.lines > h.parser.limits.Haves {
		return 0, git.ObjectID{}, tooMany("have", h.parser.limits.Haves)
	}
	value, _ = h.parser.cutID(value)
	id, err := h.parser.objectID(value, "have")
	return TurnHave, id, err
}
