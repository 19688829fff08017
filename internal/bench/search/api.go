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

// searchMatch is the location of a search result.
type searchMatch struct{ repository, commit string }

// request is a request without the parts that depend on the server.
type request struct {
	line   string // method and path
	header string
	body   []byte
}

// bytes encodes the request for a server.
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

// searchAPI is a search API.
type searchAPI struct {
	// request returns a request for a number of results.
	request func(query string, results int) (request, error)
	// parse parses the first response completely.
	parse func(body []byte) ([]searchMatch, error)
	// mark occurs once in each result, and end ends each complete response. Later responses are checked with these alone,
	// which costs little CPU time.
	mark, end string
}

func (a *searchAPI) count(body []byte) (int, error) {
	if !bytes.HasSuffix(bytes.TrimRight(body, "\n"), []byte(a.end)) {
		return 0, fmt.Errorf("a response of %d bytes that does not end with %q", len(body), a.end)
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
	values := url.Values{"q": {withCount(query, results)}, "v": {"V3"}, "cm": {"t"}}
	return get("/.api/search/stream", values, "text/event-stream")
}

func graphQLRequest(query string, results int) (request, error) {
	const search = `query ($query: String!) { search(query: $query, version: V3) { results { results { __typename ... on FileMatch {
repository { name, url } file { name, path, url, commit { oid } } lineMatches { preview, lineNumber, offsetAndLengths,
	limitHit } } }
limitHit, cloning { name }, missing { name }, timedout { name }, resultCount, elapsedMilliseconds } } }`
	variables := map[string]string{"query": withCount(query, results)}
	return post("/.api/graphql", map[string]any{"query": search, "variables": variables})
}

// zoektRequest requests the same number of files, with a search of the depth that this needs.
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
			return nil, fmt.Errorf("server error: %.200s", value)
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
		return nil, errors.New("the response has no Result")
	}
	var all []searchMatch
	for _, f := range answer.Result.Files {
		all = append(all, searchMatch{f.Repository, f.Version})
	}
	return all, nil
}
