package search

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// searchAPI is a search API.
type searchAPI struct {
	// request encodes a request for a number of results.
	request func(t *loadgen.Target, query string, results int) []byte
	// mark occurs once in each result. Later responses are checked with it alone, which costs little CPU time.
	mark string
	// parse returns the number of results of the first response.
	parse func(body []byte) (int, error)
}

var (
	ours  = searchAPI{ourRequest, `"commit":"`, parseOurs}
	zoekt = searchAPI{zoektRequest, `"FileName":"`, parseZoekt}
)

// count returns the number of results in a complete response.
func (a *searchAPI) count(body []byte) (int, error) {
	if !bytes.HasSuffix(bytes.TrimRight(body, "\n"), []byte("}")) {
		return 0, fmt.Errorf("a response of %d bytes that does not end with }", len(body))
	}
	return bytes.Count(body, []byte(a.mark)), nil
}

const headers = "User-Agent: packhorse-bench\r\nAccept-Encoding: identity\r\n"

func ourRequest(t *loadgen.Target, query string, results int) []byte {
	if !strings.Contains(query, "count:") {
		query += fmt.Sprint(" count:", results)
	}
	return t.Encode(http.MethodGet, t.Path+"/-/api/v1/search?"+url.Values{"q": {query}}.Encode(),
		headers+"Accept: application/json\r\n", nil)
}

// zoektRequest requests the same number of files, with a search of the depth that this needs.
func zoektRequest(t *loadgen.Target, query string, results int) []byte {
	body, _ := json.Marshal(map[string]any{"Q": query, "Opts": map[string]any{ // it has no values that can fail
		"ChunkMatches": true, "NumContextLines": 0, "MaxDocDisplayCount": results,
		"ShardMaxMatchCount": 100 * results, "TotalMaxMatchCount": 100 * results,
	}})
	return t.Encode(http.MethodPost, t.Path+"/api/search", headers+"Content-Type: application/json\r\n", body)
}

func parseOurs(body []byte) (int, error) {
	var answer struct {
		Results []struct{ Repository, Commit string }
	}
	err := json.Unmarshal(body, &answer)
	return len(answer.Results), err
}

func parseZoekt(body []byte) (int, error) {
	var answer struct {
		Result struct {
			Files []struct{ Repository, Version string }
		}
	}
	err := json.Unmarshal(body, &answer)
	return len(answer.Result.Files), err
}
