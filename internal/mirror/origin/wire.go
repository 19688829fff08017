package origin

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
	"github.com/packhorse-git/packhorse/internal/git/protocol"
)

// advertisement is what an origin sends first about a repository.
type advertisement struct {
	version protocol.Version // V0 or V2
	format  git.ObjectFormat
	offer   protocol.Offer // of version 2
	v0      []string       // version 0: the capabilities
}

// maxCapabilities is the maximum number of capability lines of version 2.
const maxCapabilities = 1000

// readAdvertisement reads an advertisement of upload-pack in any version. Over HTTP a line with the service may come
// first. The refs of version 0 are added to refs.
func readAdvertisement(r *pktline.Reader, refs *listing) (*advertisement, error) {
	switch line, err := beginAdvertisement(r); {
	case err != nil:
		return nil, err
	case line == "": // a server of before 2012, with an empty repository
		return &advertisement{format: git.SHA1}, nil
	case line == "version 2":
		return readCapabilities(r)
	default:
		return readRefsV0(r, line, refs)
	}
}

// beginAdvertisement returns the first line of an advertisement that is of interest: "version 2" or a ref. It is empty
// if the advertisement is.
func beginAdvertisement(r *pktline.Reader) (string, error) {
	line, end, err := textLine(r)
	if err == nil && strings.HasPrefix(line, "# service=") {
		if _, end, err = textLine(r); err == nil && !end {
			return "", fmt.Errorf("%w: no flush packet after the service", errInvalid)
		}
		line, end, err = textLine(r)
	}
	if err == nil && line == "version 1" {
		line, end, err = textLine(r)
	}
	if err == nil && !end && line == "" {
		err = fmt.Errorf("%w: empty line", errInvalid)
	}
	return line, err
}

// readCapabilities reads the rest of an advertisement of version 2 (gitprotocol-v2(5), "Capability Advertisement").
func readCapabilities(r *pktline.Reader) (*advertisement, error) {
	a := &advertisement{version: protocol.V2, format: git.SHA1}
	for range maxCapabilities {
		line, end, err := textLine(r)
		if err != nil || end {
			return a, err
		}
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "object-format":
			if a.format, err = git.ParseObjectFormat(value); err != nil {
				return nil, fmt.Errorf("%w: %w", errInvalid, err)
			}
		case "ls-refs":
			a.offer.Unborn = hasWord(value, "unborn")
		case "fetch":
			a.offer.Filter, a.offer.RefInWant = hasWord(value, "filter"), hasWord(value, "ref-in-want")
			a.offer.SidebandAll = hasWord(value, "sideband-all")
		case "object-info":
			a.offer.ObjectInfo = true
		case "bundle-uri":
			a.offer.BundleURI = true
		}
	}
	return nil, fmt.Errorf("%w: more than %d capabilities", errInvalid, maxCapabilities)
}

// readRefsV0 reads an advertisement of version 0 from its first ref (gitprotocol-pack(5), "Reference Discovery"). Its
// refs become lines of version 2.
func readRefsV0(r *pktline.Reader, first string, refs *listing) (*advertisement, error) {
	first, capabilities, ok := strings.Cut(first, "\x00")
	if !ok {
		return nil, fmt.Errorf("%w: no capabilities", errInvalid)
	}
	a := &advertisement{format: git.SHA1, v0: strings.Fields(capabilities)}
	head := ""
	for _, c := range a.v0 {
		key, value, _ := strings.Cut(c, "=")
		switch key {
		case "object-format":
			var err error
			if a.format, err = git.ParseObjectFormat(value); err != nil {
				return nil, fmt.Errorf("%w: %w", errInvalid, err)
			}
		case "symref":
			if target, ok := strings.CutPrefix(value, "HEAD:"); ok {
				head = target
			}
		}
	}
	for line, end := first, false; !end; {
		id, name, ok := strings.Cut(line, " ")
		tag, isPeeled := strings.CutSuffix(name, "^{}")
		var err error
		switch {
		case !ok || len(id) != a.format.HexSize() && id != "shallow":
			err = fmt.Errorf("%w: line %.100q", errInvalid, line)
		case id == "shallow":
			err = errShallow
		case tag == "capabilities": // there are no refs
		case isPeeled:
			err = refs.peel(id, tag)
		case name == "HEAD" && head != "":
			err = refs.add([]byte(id+" HEAD symref-target:"+head), []byte(name))
		default:
			err = refs.add([]byte(line), []byte(name))
		}
		if err == nil {
			line, end, err = textLine(r)
		}
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// textLine returns the next line, or end at a flush packet.
func textLine(r *pktline.Reader) (line string, end bool, err error) {
	b, end, err := readLine(r)
	return string(b), end, err
}

// readLine is textLine without a copy: the line is valid until the next call. An ERR packet is an error
// (gitprotocol-pack(5), "error-line").
func readLine(r *pktline.Reader) (line []byte, end bool, err error) {
	kind, line, err := r.Line()
	switch {
	case err != nil:
		return nil, false, unexpected(err)
	case kind == pktline.Flush:
		return nil, true, nil
	case kind != pktline.Data:
		return nil, false, fmt.Errorf("%w: %s packet", errInvalid, kind)
	}
	if message, ok := bytes.CutPrefix(line, []byte("ERR ")); ok {
		return nil, false, reported(message)
	}
	return line, false, nil
}

// lsRefs returns a request for refs in version 2 (gitprotocol-v2(5), "ls-refs").
func (a *advertisement) lsRefs(agent string, prefixes []string) []byte {
	b := appendCommand(nil, protocol.CommandLsRefs, agent, a.format)
	b = pktline.AppendLine(b, "peel")
	b = pktline.AppendLine(b, "symrefs")
	if a.offer.Unborn {
		b = pktline.AppendLine(b, "unborn")
	}
	if len(prefixes) > 0 {
		b = pktline.AppendLine(b, "ref-prefix HEAD")
	}
	for _, prefix := range prefixes {
		b = pktline.AppendLine(b, "ref-prefix "+prefix)
	}
	return pktline.AppendFlush(b)
}

// v2 returns a request for a pack in version 2 (gitprotocol-v2(5), "fetch").
func (f *FetchRequest) v2(agent string) []byte {
	b := make([]byte, 0, 200+(len(f.Wants)+len(f.Haves))*(f.Format.HexSize()+10))
	b = appendCommand(b, protocol.CommandFetch, agent, f.Format)
	b = pktline.AppendLine(b, "ofs-delta")
	if len(f.Haves) > 0 {
		b = pktline.AppendLine(b, "thin-pack")
	}
	if f.Progress == nil {
		b = pktline.AppendLine(b, "no-progress")
	}
	b = appendIDs(b, "want ", f.Wants)
	b = appendIDs(b, "have ", f.Haves)
	b = pktline.AppendLine(b, "done")
	return pktline.AppendFlush(b)
}

// v0 returns a request for a pack in version 0 (gitprotocol-pack(5), "Packfile Negotiation").
func (f *FetchRequest) v0(agent string, a *advertisement) []byte {
	b := make([]byte, 0, 200+(len(f.Wants)+len(f.Haves))*(f.Format.HexSize()+10))
	features := " side-band-64k"
	// some servers refuse clients that do not know it
	for _, feature := range []string{"multi_ack_detailed", "ofs-delta", "thin-pack", "no-progress", "agent",
		"object-format"} {
		switch {
		case !a.has(feature), feature == "thin-pack" && len(f.Haves) == 0, feature == "no-progress" && f.Progress != nil:
			continue
		case feature == "agent":
			feature += "=" + agent
		case feature == "object-format":
			feature += "=" + a.format.String()
		}
		features += " " + feature
	}
	for i, id := range f.Wants {
		var start int
		b, start = pktline.Start(b)
		b = id.AppendHex(append(b, "want "...))
		if i == 0 {
			b = append(b, features...)
		}
		b = pktline.Finish(append(b, '\n'), start)
	}
	b = pktline.AppendFlush(b)
	b = appendIDs(b, "have ", f.Haves)
	return pktline.AppendLine(b, "done")
}

// has reports whether the origin has a capability of version 0.
func (a *advertisement) has(feature string) bool {
	for _, c := range a.v0 {
		if key, _, _ := strings.Cut(c, "="); key == feature {
			return true
		}
	}
	return false
}

// appendCommand appends the begin of a request of version 2. SHA-1 is what a request without an object format means,
// and servers older than object formats accept no line about them.
func appendCommand(b []byte, command protocol.Command, agent string, format git.ObjectFormat) []byte {
	b = pktline.AppendLine(b, "command="+string(command))
	b = pktline.AppendLine(b, "agent="+agent)
	if format != git.SHA1 {
		b = pktline.AppendLine(b, "object-format="+format.String())
	}
	return pktline.AppendDelim(b)
}

func appendIDs(b []byte, word string, ids []git.ObjectID) []byte {
	for _, id := range ids {
		var start int
		b, start = pktline.Start(b)
		b = append(id.AppendHex(append(b, word...)), '\n')
		b = pktline.Finish(b, start)
	}
	return b
}

func hasWord(list, word string) bool {
	for w := range strings.FieldsSeq(list) {
		if w == word {
			return true
		}
	}
	return false
}
