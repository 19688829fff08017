package protocol

import (
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Capabilities is the capability advertisement of version 2 (gitprotocol-v2(5), "Capability Advertisement").
type Capabilities struct {
	Agent     string
	Format    git.ObjectFormat
	Offer     Offer
	SessionID string // only with Offer.Session
}

// Append appends the advertisement.
func (c Capabilities) Append(b []byte) []byte {
	b = pktline.AppendLine(b, "version 2")
	b = pktline.AppendLine(b, "agent="+c.Agent)
	refs, fetch := "ls-refs", "fetch=shallow wait-for-done"
	for _, f := range []struct {
		on      bool
		command *string
		feature string
	}{
		{c.Offer.Unborn, &refs, "=unborn"}, {c.Offer.Filter, &fetch, " filter"},
		{c.Offer.RefInWant, &fetch, " ref-in-want"},
		{c.Offer.SidebandAll, &fetch, " sideband-all"},
	} {
		if f.on {
			*f.command += f.feature
		}
	}
	b = pktline.AppendLine(b, refs)
	b = pktline.AppendLine(b, fetch)
	b = pktline.AppendLine(b, "server-option")
	b = pktline.AppendLine(b, "object-format="+c.Format.String())
	if c.Offer.Session {
		b = pktline.AppendLine(b, "session-id="+c.SessionID)
	}
	if c.Offer.ObjectInfo {
		b = pktline.AppendLine(b, string(CommandObjectInfo)+"=size")
	}
	if c.Offer.BundleURI {
		b = pktline.AppendLine(b, string(CommandBundleURI))
	}
	return pktline.AppendFlush(b)
}

// RefLine is one line of an ls-refs answer.
type RefLine struct {
	Name   git.RefName
	ID     git.ObjectID // zero: unborn
	Target git.RefName  // "" or what a symbolic ref points at
	Peeled git.ObjectID // zero: none
}

// AppendRef appends a line of an ls-refs answer (gitprotocol-v2(5), "ls-refs").
func AppendRef(b []byte, ref RefLine) []byte {
	b, start := pktline.Start(b)
	if ref.ID.IsZero() {
		b = append(b, "unborn"...)
	} else {
		b = ref.ID.AppendHex(b)
	}
	b = append(b, ' ')
	b = append(b, ref.Name...)
	if ref.Target != "" {
		b = append(b, " symref-target:"...)
		b = append(b, ref.Target...)
	}
	if !ref.Peeled.IsZero() {
		b = append(b, " peeled:"...)
		b = ref.Peeled.AppendHex(b)
	}
	b = append(b, '\n')
	return pktline.Finish(b, start)
}

// Lines builds the sections of a fetch response in one buffer. With Sideband every line is sent on side-band 1, as
// sideband-all requires (gitprotocol-v2(5), "fetch"); special packets are unchanged.
type Lines struct {
	Buf      []byte
	Sideband bool
}

func (l *Lines) start() (start int) {
	l.Buf, start = pktline.Start(l.Buf)
	if l.Sideband {
		l.Buf = append(l.Buf, byte(pktline.BandData))
	}
	return start
}

func (l *Lines) finish(start int) { l.Buf = pktline.Finish(append(l.Buf, '\n'), start) }

// Text adds a line: a section's header, "NAK", "ready".
func (l *Lines) Text(text string) {
	start := l.start()
	l.Buf = append(l.Buf, text...)
	l.finish(start)
}

// ID adds a line that is a word and an object ID: "ACK", "shallow", "unshallow".
func (l *Lines) ID(word string, id git.ObjectID) {
	start := l.start()
	l.Buf = append(append(l.Buf, word...), ' ')
	l.Buf = id.AppendHex(l.Buf)
	l.finish(start)
}

// Ack adds an acknowledgment of versions 0 and 1. status is "", or the status of multi_ack or multi_ack_detailed.
func (l *Lines) Ack(id git.ObjectID, status string) {
	start := l.start()
	l.Buf = id.AppendHex(append(l.Buf, "ACK "...))
	if status != "" {
		l.Buf = append(append(l.Buf, ' '), status...)
	}
	l.finish(start)
}

// Boundary adds a line "shallow" or "unshallow" of versions 0 and 1, which has no newline (gitprotocol-pack(5),
// "shallow-update").
func (l *Lines) Boundary(word string, id git.ObjectID) {
	start := l.start()
	l.Buf = append(append(l.Buf, word...), ' ')
	l.Buf = pktline.Finish(id.AppendHex(l.Buf), start)
}

// WantedRef adds a line of the wanted-refs section.
func (l *Lines) WantedRef(id git.ObjectID, name git.RefName) {
	start := l.start()
	l.Buf = append(id.AppendHex(l.Buf), ' ')
	l.Buf = append(l.Buf, name...)
	l.finish(start)
}

// Delim ends a section.
func (l *Lines) Delim() { l.Buf = pktline.AppendDelim(l.Buf) }

// Flush ends the answer.
func (l *Lines) Flush() { l.Buf = pktline.AppendFlush(l.Buf) }

// AppendError appends an ERR packet (gitprotocol-pack(5), "error-line"): the client prints the message and gives up.
// Control characters in the message become spaces.
func AppendError(b []byte, message string) []byte {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, message)
	return pktline.Append(b, "ERR "+clean[:min(len(clean), 1000)])
}
