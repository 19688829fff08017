package gitload

import (
	"context"
	"encoding/json"
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
	commit := map[string]any{"branch": branch, "message": path,
		"changes": []any{map[string]any{"put": map[string]string{"path": path, "text": text}}}}
	if start != "" {
		commit["create"], commit["start"] = true, start
	}
	return c.Call(ctx, http.MethodPost, repo, "commits", commit, nil)
}

// CheckMerges tests merges, and returns how many have no conflicts.
func (c *Client) CheckMerges(ctx context.Context, repo string, pairs [][2]string) (clean int, err error) {
	list := make([]map[string]string, len(pairs))
	for i, p := range pairs {
		list[i] = map[string]string{"target": p[0], "source": p[1]}
	}
	body, err := c.Open(ctx, http.MethodPost, repo, "merges/check", map[string]any{"pairs": list})
	if err != nil {
		return 0, err
	}
	defer body.Close()
	lines := json.NewDecoder(body)
	for n := range pairs {
		var result struct {
			Error, Fault any
			Conflicts    []any
		}
		if err := lines.Decode(&result); err != nil {
			return clean, fmt.Errorf("check of merge %d of %d: %w", n, len(pairs), err)
		}
		if result.Error != nil || result.Fault != nil {
			return clean, fmt.Errorf("check of merge %d: %v %v", n, result.Error, result.Fault)
		}
		if len(result.Conflicts) == 0 {
			clean++
		}
	}
	return clean, nil
}
