package mirror

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/packhorse-git/packhorse/internal/git/pktline"
)

// client is a git client that reads and drops packs. It speaks version 2 (gitprotocol-v2(5)).
type client struct {
	url  string // of a server's repositories
	http *http.Client
}

// newClient returns a client with connections of its own.
func newClient(url string) *client {
	return &client{url: url, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// do sends a request and returns the body and the time until its first byte.
func (c *client) do(ctx context.Context, method, path string, body []byte) (io.ReadCloser, time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Git-Protocol", "version=2")
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-git-upload-pack-request")
	}
	begun := time.Now()
	response, err := c.http.Do(request)
	if err != nil {
		return nil, 0, err
	}
	first := time.Since(begun)
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 300))
		response.Body.Close()
		return nil, 0, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(text))
	}
	return response.Body, first, nil
}

// info asks for the capabilities, as each git client does first.
func (c *client) info(ctx context.Context, repo string) error {
	body, _, err := c.do(ctx, http.MethodGet, "/"+repo+"/info/refs?service=git-upload-pack", nil)
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}

// lsRefs asks for a branch, and returns its commit and the time to the first byte.
func (c *client) lsRefs(ctx context.Context, repo, branch string) (id string, first time.Duration, err error) {
	request := pktline.AppendDelim(pktline.AppendLine(nil, "command=ls-refs"))
	request = pktline.AppendFlush(pktline.AppendLine(request, "ref-prefix refs/heads/"+branch))
	body, first, err := c.do(ctx, http.MethodPost, "/"+repo+"/git-upload-pack", request)
	if err != nil {
		return "", 0, err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return "", 0, err
	}
	at := bytes.Index(text, []byte(" refs/heads/"+branch+"\n"))
	if at < 40 {
		return "", 0, fmt.Errorf("%s has no branch %s: %.200q", repo, branch, text)
	}
	return string(text[at-40 : at]), first, nil
}

// fetch asks for a commit, with a depth if it is not zero, and reads the pack to its end.
func (c *client) fetch(ctx context.Context, repo, want string, depth int) (size int64, err error) {
	request := pktline.AppendDelim(pktline.AppendLine(nil, "command=fetch"))
	request = pktline.AppendLine(request, "ofs-delta")
	request = pktline.AppendLine(request, "want "+want)
	if depth > 0 {
		request = pktline.AppendLine(request, fmt.Sprintf("deepen %d", depth))
	}
	request = pktline.AppendFlush(pktline.AppendLine(request, "done"))
	body, _, err := c.do(ctx, http.MethodPost, "/"+repo+"/git-upload-pack", request)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	lines, inPack := pktline.NewReader(body), false
	for {
		kind, line, err := lines.Next()
		switch {
		case err != nil:
			return size, fmt.Errorf("reading the pack: %w", err)
		case kind == pktline.Flush && inPack:
			return size, nil
		case kind == pktline.Flush:
			return size, errors.New("the response has no pack")
		case kind != pktline.Data:
		case !inPack:
			if text, isError := strings.CutPrefix(string(line), "ERR "); isError {
				return size, errors.New(text)
			}
			inPack = strings.TrimSuffix(string(line), "\n") == "packfile"
		case line[0] == 3:
			return size, errors.New(string(line[1:]))
		case line[0] == 1:
			size += int64(len(line) - 1)
		}
	}
}

// clone does what a job does: capabilities, the branch, and its commit.
func (c *client) clone(ctx context.Context, repo string, depth int) error {
	if err := c.info(ctx, repo); err != nil {
		return err
	}
	id, _, err := c.lsRefs(ctx, repo, "main")
	if err != nil {
		return err
	}
	_, err = c.fetch(ctx, repo, id, depth)
	return err
}
