package search

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/packhorse-git/packhorse/internal/bench/loadgen"
)

// searchMatch is what a result says of where it is.
type searchMatch struct{ repository, commit string }

// request is one without what depends on the server.
type request struct {
	line   string // method and path
	header string
	body   []byte
}

// bytes returns the request for a server.
func (r request) bytes(t *loadgen.Target) []byte {
	method, path, _ := strings.Cut(r.line, " ")
	b := fmt.Appendf(nil, "%s %s%s HTTP/1.1\r\nHost: %s\r\nUser-Agent: packhorse-bench\r\nAccept-Encoding: identity\r\n%s",
		method, t.Path, path, t.Host, r.header)
	if t.Auth != "" {
		b = fmt.Appendf(b, "Authorization: %s\r\n", t.Auth)
	}
	if method == http.MethodPost {
		b = fmt.Appendf(b, "Content-Length: %d\r\n", len(r.body))
	}
	return append(append(b, "\r\n"...), r.body...)
}

// searchAPI is a way to search.
type searchAPI struct {
	// request is the one for some results.
	request func(query string, results int) (request, error)
	// parse reads the first answer whole.
	parse func(body []byte) ([]searchMatch, error)
	// mark occurs once in each result, and end ends each whole answer: later answers are looked at with these alone, which
	// costs the CPU little.
	mark, end string
}

func (a *searchAPI) count(body []byte) (int, error) {
	if !bytes.HasSuffix(bytes.TrimRight(body, "\n"), []byte(a.end)) {
		return 0, fmt.Errorf("an answer of %d bytes that does not end with %q", len(body), a.end)
	}
	return bytes.Count(body, []byte(a.mark)), nil
}

var searchAPIs = map[string]searchAPI{
	"json":    {jsonRequest, parseJSONSearch, `"commit":"`, "}"},
	"stream":  {streamRequest, parseStream, `"commit":"`, "event: done\ndata: {}"},
	"graphql": {graphQLRequest, parseGraphQL, `"commit":{"oid":"`, "}"},
	"zoekt":   {zoektRequest, parseZoekt, `"FileName":"`, "}"},
}

func get(path string, query url.Values, accept string) (request, error) {
	return request{line: "GET " + path + "?" + query.Encode(), header: "Accept: " + accept + "\r\n"}, nil
}

func post(path string, v any) (request, error) {
	body, err := json.Marshal(v)
	return request{line: "POST " + path, header: "Content-Type: application/json\r\n", body: body}, err
}

func withCount(query string, results int) string {
	if strings.Contains(query, "count:") {
		return query
	}
	return query + " count:" + strconv.Itoa(results)
}

func jsonRequest(query string, results int) (request, error) {
	return get("/-/api/v1/search", url.Values{"q": {withCount(query, results)}}, "application/json")
}

func streamRequest(query string, results int) (request, error) {
	return get("/.api/search/stream", url.Values{"q": {withCount(query, results)}, "v": {"V3"}, "cm": {"t"}}, "text/event-stream")
}

func graphQLRequest(query string, results int) (request, error) {
	const search = `query ($query: String!) { search(query: $query, version: V3) { results { results { __typename ... on FileMatch {
repository { name, url } file { name, path, url, commit { oid } } lineMatches { preview, lineNumber, offsetAndLengths,
	limitHit } } }
limitHit, cloning { name }, missing { name }, timedout { name }, resultCount, elapsedMilliseconds } } }`
	return post("/.api/graphql", map[string]any{"query": search, "variables": map[string]string{"query": withCount(query, results)}})
}

// zoektRequest asks for the same: so many files, with a search as deep as that needs.
func zoektRequest(query string, results int) (request, error) {
	return post("/api/search", map[string]any{"Q": query, "Opts": map[string]any{
		"ChunkMatches": true, "NumContextLines": 0, "MaxDocDisplayCount": results,
		"ShardMaxMatchCount": 100 * results, "TotalMaxMatchCount": 100 * results,
	}})
}

func parseJSONSearch(body []byte) ([]searchMatch, error) {
	var answer struct {
		Results []struct{ Repository, Commit string }
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	var all []searchMatch
	for _, r := range answer.Results {
		all = append(all, searchMatch{r.Repository, r.Commit})
	}
	return all, nil
}

func parseStream(body []byte) ([]searchMatch, error) {
	var all []searchMatch
	event := ""
	lines := bufio.NewScanner(bytes.NewReader(body))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch {
		case name == "event":
			event = value
		case name == "data" && event == "matches":
			var batch []struct{ Repository, Commit string }
			if err := json.Unmarshal([]byte(value), &batch); err != nil {
				return nil, err
			}
			for _, r := range batch {
				all = append(all, searchMatch{r.Repository, r.Commit})
			}
		case name == "data" && event == "error":
			return nil, fmt.Errorf("the server says %.200s", value)
		}
	}
	return all, lines.Err()
}

func parseGraphQL(body []byte) ([]searchMatch, error) {
	var answer struct {
		Errors []struct{ Message string }
		Data   struct {
			Search struct {
				Results struct {
					Results []struct {
						Repository struct{ Name string }
						File       struct{ Commit struct{ OID string } }
					}
				}
			}
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if len(answer.Errors) > 0 {
		return nil, errors.New(answer.Errors[0].Message)
	}
	var all []searchMatch
	for _, r := range answer.Data.Search.Results.Results {
		all = append(all, searchMatch{r.Repository.Name, r.File.Commit.OID})
	}
	return all, nil
}

func parseZoekt(body []byte) ([]searchMatch, error) {
	var answer struct {
		Result *struct {
			Files []struct{ Repository, Version string }
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if answer.Result == nil {
		return nil, errors.New("no Result in it")
	}
	var all []searchMatch
	for _, f := range answer.Result.Files {
		all = append(all, searchMatch{f.Repository, f.Version})
	}
	return all, nil
}
