package gitload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Call sends a request to the JSON API of a repository, as "commits", with a body unless it is nil. It reads the
// response into out, or drops it if out is nil.
func (c *Client) Call(ctx context.Context, method, repo, call string, body, out any) error {
	reader, err := c.Open(ctx, method, repo, call, body)
	if err != nil {
		return err
	}
	defer reader.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, reader)
		return err
	}
	return json.NewDecoder(reader).Decode(out)
}

// Open is Call without reading the response.
func (c *Client) Open(ctx context.Context, method, repo, call string, body any) (io.ReadCloser, error) {
	var data []byte
	var err error
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	reader, _, err := c.do(ctx, method, "/-/api/v1/repos/"+repo+"/"+call, "application/json", data)
	return reader, err
}

// Put commits one file to a branch, on whatever its head is. With start it makes the branch, which begins there.
func (c *Client) Put(ctx context.Context, repo, branch, start, path, text string) error {
	type put struct {
		Path string `json:"path"`
		Text string `json:"text"`
	}
	commit := map[string]any{"branch": branch, "message": path, "changes": []map[string]put{{"put": {path, text}}}}
	if start != "" {
		commit["create"], commit["start"] = true, start
	}
	return c.Call(ctx, http.MethodPost, repo, "commits", commit, nil)
}

// CheckMerges tests merges, and returns how many have no conflicts.
func (c *Client) CheckMerges(ctx context.Context, repo string, pairs [][2]string) (clean int, err error) {
	type pair struct {
		Target string `json:"target"`
		Source string `json:"source"`
	}
	list := make([]pair, len(pairs))
	for i, p := range pairs {
		list[i] = pair{p[0], p[1]}
	}
	body, err := c.Open(ctx, http.MethodPost, repo, "merges/check", map[string]any{"pairs": list})
	if err != nil {
		return 0, err
	}
	defer body.Close()
	n, lines := 0, bufio.NewScanner(body)
	lines.Buffer(nil, 64<<20)
	for ; lines.Scan(); n++ {
		var result struct {
			Error     any   `json:"error"`
			Fault     any   `json:"fault"`
			Conflicts []any `json:"conflicts"`
		}
		if err := json.Unmarshal(lines.Bytes(), &result); err != nil {
			return clean, err
		}
		if result.Error != nil || result.Fault != nil {
			return clean, fmt.Errorf("check of merge %d: %.300s", n, bytes.TrimSpace(lines.Bytes()))
		}
		if len(result.Conflicts) == 0 {
			clean++
		}
	}
	if err := lines.Err(); err != nil {
		return clean, err
	}
	if n != len(pairs) {
		return clean, errors.New("the answer does not have all merges")
	}
	return clean, nil
}
