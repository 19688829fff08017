package gitload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Discover requests the capabilities of the server (gitprotocol-v2(5), "Capability Advertisement"). It returns their
// lines, and the repository's object format.
func Discover(ctx context.Context, t *loadgen.Target) (capabilities []string, format git.ObjectFormat, err error) {
	answer, err := t.AskAll(ctx, t.Discover(), 30*time.Second)
	if err != nil {
		return nil, 0, fmt.Errorf("%s/info/refs: %w", t, err)
	}
	if capabilities, err = Advertisement(answer); err != nil {
		return nil, 0, err
	}
	for _, line := range capabilities {
		if name, ok := strings.CutPrefix(line, "object-format="); ok {
			format, err = git.ParseObjectFormat(name)
		}
	}
	return capabilities, format, err
}

// Advertisement returns the lines of an advertisement of capabilities.
func Advertisement(answer []byte) (lines []string, err error) {
	r := pktline.NewReader(bytes.NewReader(answer))
	for flushes := 0; flushes < 2; {
		typ, line, err := r.Line()
		text := string(line)
		switch {
		case err != nil:
			return nil, fmt.Errorf("reading the server's capabilities: %w", err)
		case typ == pktline.Flush && len(lines) > 0:
			return lines, nil
		case typ == pktline.Flush: // it may end the "# service" line
			flushes++
		case strings.HasPrefix(text, "ERR "):
			return nil, ServerError(loadgen.Clean(line[len("ERR "):]))
		case text == "version 2" || len(lines) > 0:
			lines = append(lines, text)
		}
	}
	return nil, errors.New("the server does not support protocol v2")
}

// LsRefs makes the body of an ls-refs request (gitprotocol-v2(5), "ls-refs") for refs that begin with one of the
// prefixes.
func LsRefs(format git.ObjectFormat, prefixes ...string) []byte {
	b := pktline.AppendLine(nil, "command=ls-refs")
	b = pktline.AppendLine(b, "agent="+loadgen.UserAgent)
	b = pktline.AppendLine(b, "object-format="+format.String())
	b = pktline.AppendDelim(b)
	b = pktline.AppendLine(b, "peel")
	b = pktline.AppendLine(b, "symrefs")
	for _, p := range prefixes {
		b = pktline.AppendLine(b, "ref-prefix "+p)
	}
	return pktline.AppendFlush(b)
}

// ref is one line of a response to ls-refs.
type ref struct {
	Id     git.ObjectID
	Name   string
	symref string // target of a symbolic ref
	Peeled git.ObjectID
}

// ParseRefs parses a whole response to ls-refs, including its flush.
func ParseRefs(answer []byte) ([]ref, error) {
	var refs []ref
	for {
		if len(answer) < 4 {
			return nil, errors.New("the ref list ends without a flush")
		}
		n, err := pktline.ParseLength(answer)
		switch {
		case err != nil:
			return nil, err
		case n == 0 && len(answer) == 4:
			return refs, nil
		case n < 4:
			return nil, errors.New("special packet within the ref list")
		case n > len(answer):
			return nil, errors.New("the ref list ends within a packet")
		}
		line := strings.TrimSuffix(string(answer[4:n]), "\n")
		answer = answer[n:]
		if rest, ok := strings.CutPrefix(line, "ERR "); ok {
			return nil, ServerError(loadgen.Clean([]byte(rest)))
		}
		fields := strings.Split(line, " ")
		if len(fields) < 2 {
			return nil, fmt.Errorf("bad line %.80q in the ref list", line)
		}
		r := ref{Name: fields[1]}
		if fields[0] != "unborn" {
			if r.Id, err = git.ParseObjectID(fields[0]); err != nil {
				return nil, err
			}
		}
		for _, attr := range fields[2:] {
			if to, ok := strings.CutPrefix(attr, "symref-target:"); ok {
				r.symref = to
			}
			if id, ok := strings.CutPrefix(attr, "peeled:"); ok {
				if r.Peeled, err = git.ParseObjectID(id); err != nil {
					return nil, err
				}
			}
		}
		refs = append(refs, r)
	}
}
