package mirror

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/packhorse-git/packhorse/internal/fault"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
	"github.com/packhorse-git/packhorse/internal/mirror/origin"
	"github.com/packhorse-git/packhorse/internal/node"
)

// passage is how the origin may get a fetch of a client. The mirror's own credential can read more than the mirrored
// refs, which all readers may see.
type passage int

const (
	// passNot means that the origin does not get it.
	passNot passage = iota
	// passForAll means that it is for mirrored refs only, so that all readers may share the response.
	passForAll
	// passForCaller means that the origin decides by the caller's credential. Callers with another one do not get the
	// response.
	passForCaller
)

// credential returns the credential for relayed requests. If the origin decides about readers, it is that of the
// caller, and a caller without one stays anonymous. Zero means the mirror's own.
func (x *exchange) credential() node.Secret {
	if x.rule.OriginDecides && x.session.Authorization.IsZero() {
		return origin.Anonymous
	}
	return x.session.Authorization
}

// isRefusedAnonymous reports whether the origin refused a relayed request because the caller has no credential for it.
// A token or rule of this server may still let the caller read the mirror.
func (x *exchange) isRefusedAnonymous(err error) bool {
	return isRefusal(err) && x.rule.OriginDecides && x.session.Authorization.IsZero()
}

// relayFetch sends a fetch to the origin, if it may get it. If done is false, the mirror has to answer.
func (x *exchange) relayFetch(ctx context.Context, body []byte) (done bool, err error) {
	p, err := x.passageOf(ctx, body)
	if err != nil || p == passNot {
		return err != nil, err
	}
	x.mirror.changeDemand(func(d *demand) { d.fetches++; d.relays++ })
	defer x.mirror.changeDemand(func(d *demand) { d.relays-- })
	if err = x.relay(ctx, p, body); x.isRefusedAnonymous(err) {
		return false, nil
	}
	return true, err
}

// passageOf decides about a fetch.
func (x *exchange) passageOf(ctx context.Context, body []byte) (passage, error) {
	if !x.canRelay() {
		return passNot, nil
	}
	f := x.readFetch(body)
	if f != nil {
		refs, err := x.originRefs(ctx)
		if err != nil {
			return passNot, err
		}
		if refs != nil && !namesObjects(f, body) && asksFor(f, refs, x.rule.mirrors) {
			return passForAll, nil
		}
	}
	if x.rule.OriginDecides {
		return passForCaller, nil
	}
	if f == nil || !x.rule.ChangeRequests {
		return passNot, nil
	}
	refs, err := x.listOthers(ctx, node.Secret{}, requestRefs)
	if err == nil && asksFor(f, refs, isChangeRequest) {
		return passForAll, nil
	}
	return passNot, err
}

// namesObjects reports whether a fetch names objects of the client. The response would show which ones the origin has.
func namesObjects(f *protocol.Fetch, body []byte) bool {
	return len(f.Shallow) > 0 || bytes.Contains(body, []byte("have "))
}

// readFetch parses a fetch. It returns nil for another request, and if the origin would use objects that the client
// only names. These are a filter in an object, commits that bound the history, and a boundary that is removed.
func (x *exchange) readFetch(body []byte) *protocol.Fetch {
	packets, format := pktline.NewReader(bytes.NewReader(body)), formatOf(body)
	var f *protocol.Fetch
	if x.session.Version == protocol.V2 {
		if q, err := protocol.ReadRequest(packets, format, allFeatures, protocol.Limits{}); err == nil {
			f = q.Fetch
		}
	} else if needs, err := protocol.ReadNeeds(packets, format, allFeatures, protocol.Limits{}); err == nil {
		f = &needs.Fetch
	}
	const infinite = 0x7fffffff // git fetch --unshallow
	switch {
	case f == nil, len(f.DeepenNot) > 0, len(f.Shallow) > 0 && (f.Depth >= infinite || f.DeepenRelative):
		return nil
	case f.Filter != nil && (f.Filter.Kind == protocol.FilterSparse || f.Filter.Kind == protocol.FilterCombine):
		return nil
	}
	return f
}

// formatOf returns the object format that a request names.
func formatOf(body []byte) git.ObjectFormat {
	if bytes.Contains(body, []byte("object-format=sha256")) {
		return git.SHA256
	}
	return git.SHA1
}

// asksFor reports whether a fetch wants nothing but refs in a list that the caller may see.
func asksFor(f *protocol.Fetch, refs *origin.Refs, shows func(git.RefName) bool) bool {
	list, err := refs.List()
	if err != nil || len(f.Wants)+len(f.WantRefs) == 0 {
		return false
	}
	tips, names := make(map[git.ObjectID]bool), make(map[git.RefName]bool)
	for _, ref := range list.Refs {
		if shows(ref.Name) {
			tips[ref.ID], tips[ref.Peeled], names[ref.Name] = true, true, true
		}
	}
	return !slices.ContainsFunc(f.Wants, func(id git.ObjectID) bool { return !tips[id] }) &&
		!slices.ContainsFunc(f.WantRefs, func(name git.RefName) bool { return !names[name] })
}

// refFilter removes refs from an advertisement of version 0 or 1 (gitprotocol-pack(5), "Reference Discovery").
type refFilter struct {
	origin  io.Closer
	packets *pktline.Reader
	shows   func(git.RefName) bool

	buf          []byte // not read yet
	capabilities []byte // for the next line of a ref; nil: none
	idLength     int    // in hexadecimal digits, of the line with the capabilities
	ended        bool
}

// Read implements io.Reader.
func (f *refFilter) Read(p []byte) (int, error) {
	for len(f.buf) == 0 {
		if f.ended {
			return 0, io.EOF
		}
		if err := f.next(); err != nil {
			return 0, fault.Wrap(fault.Unavailable, "the origin sent an invalid advertisement", err)
		}
	}
	n := copy(p, f.buf)
	f.buf = f.buf[n:]
	return n, nil
}

// Close closes the origin's response.
func (f *refFilter) Close() error { return f.origin.Close() }

// next reads a packet of the origin.
func (f *refFilter) next() error {
	kind, payload, err := f.packets.Next()
	switch {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case kind == pktline.Flush:
		f.ended = true
		if f.capabilities != nil { // no ref is shown
			err = f.addRef([]byte(strings.Repeat("0", f.idLength) + " capabilities^{}"))
		}
		f.buf = pktline.AppendFlush(f.buf)
		return err
	case kind != pktline.Data:
		return errors.New("unexpected packet")
	}
	line, capabilities, isFirst := bytes.Cut(bytes.TrimSuffix(payload, []byte("\n")), []byte{0})
	id, name, _ := strings.Cut(string(line), " ")
	if isFirst {
		f.capabilities, f.idLength = f.visible(capabilities), len(id)
	}
	if !strings.HasPrefix(name, "refs/") && name != string(git.HEAD) { // the version, or a shallow commit
		if name != "capabilities^{}" {
			return f.addLine(line)
		}
		return nil
	}
	if f.shows(git.RefName(strings.TrimSuffix(name, "^{}"))) {
		return f.addRef(line)
	}
	return nil
}

// addRef adds the line of a ref. The first one has the capabilities.
func (f *refFilter) addRef(line []byte) error {
	line = slices.Clone(line)
	if f.capabilities != nil {
		line = append(append(line, 0), f.capabilities...)
		f.capabilities = nil
	}
	return f.addLine(line)
}

func (f *refFilter) addLine(line []byte) error {
	if len(line)+5 > pktline.MaxLine { // with its length and a newline
		return errors.New("too long line")
	}
	f.buf = pktline.AppendLine(f.buf[:0], line)
	return nil
}

// visible returns the capabilities without those that name hidden refs.
func (f *refFilter) visible(capabilities []byte) []byte {
	kept := [][]byte{}
	for word := range bytes.FieldsSeq(capabilities) {
		link, isLink := bytes.CutPrefix(word, []byte("symref="))
		from, to, _ := strings.Cut(string(link), ":")
		if !isLink || f.shows(git.RefName(from)) && f.shows(git.RefName(to)) {
			kept = append(kept, word)
		}
	}
	return append([]byte{' '}, bytes.Join(kept, []byte(" "))...)
}
