// Package protocol is the codec for the requests and responses of Git's wire protocol: version 2 (gitprotocol-v2(5)),
// and versions 0 and 1 (gitprotocol-pack(5)) in v0.go. It parses and encodes, and decides nothing. It does no I/O
// except with the reader that it is given.
package protocol

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Limits limits a request. A zero field means the default beside it. A request beyond a limit is an error of kind
// Invalid. Repeated lines count.
type Limits struct {
	Wants         int // Want lines, and want-ref lines: 1,000,000 each.
	Haves         int // Have lines: 1,000,000.
	Shallow       int // Shallow lines: 100,000.
	DeepenNot     int // Deepen-not lines: 100,000.
	Capabilities  int // Lines before the arguments, server options among them: 1,000.
	FilterLength  int // Bytes of a filter specification: 4,096.
	FilterDepth   int // Nesting of combine: filters: 8.
	FilterMembers int // Simple filters in one specification: 64.
	Objects       int // Oid lines of object-info: 10,000, as many as git sends.

	// Hold is called with the bytes of memory that the parsed request is about to use. Its error ends the parsing. Nil:
	// memory is not counted.
	Hold func(n int64) error
}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{
		{&l.Wants, 1_000_000}, {&l.Haves, 1_000_000}, {&l.Shallow, 100_000}, {&l.DeepenNot, 100_000},
		{&l.Capabilities, 1_000}, {&l.FilterLength, 4096}, {&l.FilterDepth, 8}, {&l.FilterMembers, 64},
		{&l.Objects, 10_000},
	} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return l
}

// maxPrefixes is the maximum number of ref-prefix lines that are used. A client that sends more gets all refs and
// filters them itself, as with git: prefixes are a hint.
const maxPrefixes = 65536

// maxPrefixBytes is the maximum size of all prefixes. If they are longer, or one is longer than any ref's name, they
// are ignored.
const maxPrefixBytes = 1 << 20

// Command is the name of a version 2 command.
type Command string

const (
	CommandLsRefs     Command = "ls-refs"
	CommandFetch      Command = "fetch"
	CommandObjectInfo Command = "object-info"
	CommandBundleURI  Command = "bundle-uri"
)

// Offer is the set of optional features that a server advertises. It accepts no others. Versions 0 and 1 have only
// Filter and Session.
type Offer struct {
	Filter, RefInWant, SidebandAll bool // features of fetch
	Unborn                         bool // a feature of ls-refs; the argument is accepted anyway, as with git
	Session                        bool // session-id
	ObjectInfo, BundleURI          bool // commands
}

// And returns the features that are in both offers.
func (o Offer) And(other Offer) Offer {
	return Offer{
		Filter: o.Filter && other.Filter, RefInWant: o.RefInWant && other.RefInWant,
		SidebandAll: o.SidebandAll && other.SidebandAll, Unborn: o.Unborn && other.Unborn,
		Session: o.Session && other.Session, ObjectInfo: o.ObjectInfo && other.ObjectInfo,
		BundleURI: o.BundleURI && other.BundleURI,
	}
}

// Request is one version 2 request. Exactly one of LsRefs, Fetch, ObjectInfo and BundleURI is set.
type Request struct {
	Agent         string
	SessionID     string
	ServerOptions int // their number; they are ignored, and may be long
	Format        git.ObjectFormat
	LsRefs        *LsRefs
	Fetch         *Fetch
	ObjectInfo    *ObjectInfo
	BundleURI     bool
}

// Command returns the command of the request.
func (r *Request) Command() Command {
	switch {
	case r.LsRefs != nil:
		return CommandLsRefs
	case r.ObjectInfo != nil:
		return CommandObjectInfo
	case r.BundleURI:
		return CommandBundleURI
	}
	return CommandFetch
}

// LsRefs is a request for refs.
type LsRefs struct {
	Peel, Symrefs, Unborn bool
	Prefixes              []string // empty: all refs
}

func invalid(format string, args ...any) error { return fault.New(fault.Invalid, format, args...) }

// ReadRequest reads one request. It accepts only the offered features. A flush packet or the end of the stream instead
// of a request returns nil and no error: the client has no request.
func ReadRequest(r *pktline.Reader, format git.ObjectFormat, offer Offer, limits Limits) (*Request, error) {
	p := &parser{r: r, limits: limits.withDefaults(), format: format, offer: offer, req: &Request{Format: git.SHA1}}
	command, arguments, err := p.capabilities()
	if err != nil || command == "" {
		return nil, err
	}
	if p.req.Format != format {
		return nil, invalid("mismatched object format: server %s; client %s", format, p.req.Format)
	}
	switch c := Command(command); {
	case c == CommandLsRefs:
		p.req.LsRefs = &LsRefs{}
		err = p.lines(arguments, p.lsRefsArgument)
	case c == CommandFetch:
		p.req.Fetch = &Fetch{}
		err = p.fetch(arguments)
	case c == CommandObjectInfo && offer.ObjectInfo:
		p.req.ObjectInfo = &ObjectInfo{}
		err = p.lines(arguments, p.objectInfoArgument)
	case c == CommandBundleURI && offer.BundleURI:
		p.req.BundleURI = true
		err = p.lines(arguments, unexpected)
	default:
		return nil, invalid("unknown command %.80q", command)
	}
	if err != nil {
		return nil, err
	}
	return p.req, nil
}

type parser struct {
	r      *pktline.Reader
	limits Limits
	format git.ObjectFormat
	offer  Offer
	req    *Request
	haves  places                   // of f.Haves
	named  map[git.RefName]struct{} // want-refs, once there are many
	owed   int64                    // bytes of memory not yet reported to limits.Hold

	wants, wantRefs, haveLines, shallow int  // lines so far
	prefixBytes                         int  // length of the prefixes so far
	allRefs                             bool // the prefixes are ignored
}

// next returns the next packet as text. The end of the stream inside a request is the client's error.
func (p *parser) next() (pktline.Type, []byte, error) {
	t, line, err := p.r.Line()
	if err != nil {
		return 0, nil, unreadable(err)
	}
	return t, line, nil
}

// unreadable returns the error of a broken stream. An error with a fault kind, for example of a stream that is too
// long, is unchanged.
func unreadable(err error) error {
	if _, told := errors.AsType[*fault.Error](err); told {
		return err
	}
	return fault.Wrap(fault.Invalid, "the request ends early or is not a pkt-line stream", err)
}

// capabilities reads the lines before the delimiter. arguments reports whether lines follow it.
func (p *parser) capabilities() (command string, arguments bool, err error) {
	for n := 0; ; n++ {
		t, line, err := p.r.Line()
		if n == 0 && (err != nil || t == pktline.Flush) && isEnd(err) {
			return "", false, nil
		}
		if err != nil {
			return "", false, unreadable(err)
		}
		switch t {
		case pktline.Data:
		case pktline.Flush, pktline.Delim:
			if command == "" {
				return "", false, invalid("no command requested")
			}
			return command, t == pktline.Delim, nil
		default:
			return "", false, invalid("unexpected %v packet", t)
		}
		if n >= p.limits.Capabilities {
			return "", false, invalid("more than %d capability lines", p.limits.Capabilities)
		}
		key, value, hasValue := bytes.Cut(line, []byte("="))
		switch {
		case string(key) == "command" && hasValue:
			if command != "" {
				return "", false, invalid("command %.80q requested after already requesting command %.80q", value,
					command)
			}
			command = string(value)
		case string(key) == "agent":
			p.req.Agent = sanitize(value)
		case string(key) == "session-id" && p.offer.Session:
			p.req.SessionID = sanitize(value)
		case string(key) == "server-option" && hasValue:
			p.req.ServerOptions++
		case string(key) == "object-format":
			if p.req.Format, err = git.ParseObjectFormat(string(value)); err != nil {
				return "", false, invalid("unknown object format %.80q", value)
			}
		default:
			return "", false, invalid("unknown capability %.80q", line)
		}
	}
}

// sanitize makes a client's agent string safe for a log: printable ASCII without spaces, at most 256 bytes.
func sanitize(name []byte) string {
	clean := func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '.'
		}
		return r
	}
	return strings.Map(clean, string(name[:min(len(name), 256)]))
}

// lines calls argument for each line up to the flush packet.
func (p *parser) lines(arguments bool, argument func(line []byte) error) error {
	if !arguments {
		return nil
	}
	for {
		t, line, err := p.next()
		switch {
		case err != nil:
			return err
		case t == pktline.Flush:
			return nil
		case t != pktline.Data:
			return invalid("unexpected %v packet in arguments", t)
		}
		if err := argument(line); err != nil {
			return err
		}
	}
}

// holdStep is the number of bytes of small values that are counted together.
const holdStep = 4 << 10

// hold counts memory that the request uses.
func (p *parser) hold(n int64) error {
	if p.limits.Hold == nil {
		return nil
	}
	if p.owed += n; p.owed < holdStep {
		return nil
	}
	n, p.owed = p.owed, 0
	return p.limits.Hold(n)
}

func (p *parser) lsRefsArgument(line []byte) error {
	l := p.req.LsRefs
	switch string(line) {
	case "peel":
		l.Peel = true
	case "symrefs":
		l.Symrefs = true
	case "unborn":
		l.Unborn = true
	default:
		prefix, ok := bytes.CutPrefix(line, []byte("ref-prefix "))
		if !ok {
			return unexpected(line)
		}
		return p.prefix(l, prefix)
	}
	return nil
}

// prefix adds a prefix, or drops all of them if they exceed the limits.
func (p *parser) prefix(l *LsRefs, prefix []byte) error {
	p.prefixBytes += len(prefix)
	if p.allRefs || len(l.Prefixes) >= maxPrefixes || p.prefixBytes > maxPrefixBytes || len(prefix) > git.MaxRefName {
		p.allRefs, l.Prefixes = true, nil
		return nil
	}
	l.Prefixes = append(l.Prefixes, string(prefix))
	return p.hold(nameCost + int64(len(prefix)))
}

func unexpected(line []byte) error { return invalid("unexpected line: %.100q", line) }

// isEnd reports whether the result of reading the first packet means that there is no request: a flush (no error) or a
// clean end.
func isEnd(err error) bool { return err == nil || err == io.EOF }
