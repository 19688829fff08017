package gitload

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
	"github.com/packhorse-git/packhorse/internal/git"
	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// Discover requests the capability advertisement (gitprotocol-v2(5), "Capability Advertisement") and returns the
// repository's object format.
func Discover(ctx context.Context, t *loadgen.Target) (git.ObjectFormat, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.String()+"/info/refs?service=git-upload-pack", nil)
	if err != nil {
		return 0, errors.New("bad URL")
	}
	req.Header.Set("Git-Protocol", "version=2")
	req.Header.Set("User-Agent", loadgen.UserAgent)
	if t.Auth != "" {
		req.Header.Set("Authorization", t.Auth)
	}
	transport := t.Transport()
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s/info/refs: HTTP status %d", t, resp.StatusCode)
	}
	return readAdvertisement(pktline.NewReader(resp.Body))
}

func readAdvertisement(r *pktline.Reader) (git.ObjectFormat, error) {
	format, v2, flushes := git.SHA1, false, 0
	for {
		typ, line, err := r.Line()
		if err != nil {
			return 0, fmt.Errorf("reading the server's capabilities: %w", err)
		}
		if typ == pktline.Flush {
			if flushes++; v2 || flushes == 2 { // the first one may end the "# service" line
				break
			}
			continue
		}
		if rest, ok := strings.CutPrefix(string(line), "ERR "); ok {
			return 0, ServerError(loadgen.Clean([]byte(rest)))
		}
		v2 = v2 || string(line) == "version 2"
		if name, ok := strings.CutPrefix(string(line), "object-format="); ok {
			if format, err = git.ParseObjectFormat(name); err != nil {
				return 0, err
			}
		}
	}
	if !v2 {
		return 0, errors.New("the server does not support protocol v2")
	}
	return format, nil
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
