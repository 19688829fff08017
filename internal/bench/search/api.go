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

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// searchMatch is what a result says of where it is.
type searchMatch struct{ repository, commit string }

// searchAPI is a way to search.
type searchAPI struct {
	// target is the request for some results.
	target func(base, query string, results int) (vegeta.Target, error)
	// parse reads the first answer whole.
	parse func(body []byte) ([]searchMatch, error)
	// mark occurs once in each result, and end ends each whole answer: later answers are looked at with these alone, which costs the CPU little.
	mark, end string
}

func (a *searchAPI) count(body []byte) (int, error) {
	if !bytes.HasSuffix(bytes.TrimRight(body, "\n"), []byte(a.end)) {
		return 0, fmt.Errorf("an answer of %d bytes that does not end with %q", len(body), a.end)
	}
	return bytes.Count(body, []byte(a.mark)), nil
}

var searchAPIs = map[string]searchAPI{
	"json":    {jsonTarget, parseJSONSearch, `"commit":"`, "}"},
	"stream":  {streamTarget, parseStream, `"commit":"`, "event: done\ndata: {}"},
	"graphql": {graphQLTarget, parseGraphQL, `"commit":{"oid":"`, "}"},
	"zoekt":   {zoektTarget, parseZoekt, `"FileName":"`, "}"},
}

func getTarget(base, path string, query url.Values, accept string) (vegeta.Target, error) {
	return vegeta.Target{Method: http.MethodGet, URL: base + path + "?" + query.Encode(),
		Header: http.Header{"Accept": {accept}, "Accept-Encoding": {"identity"}}}, nil
}

func postTarget(base, path string, v any) (vegeta.Target, error) {
	body, err := json.Marshal(v)
	return vegeta.Target{Method: http.MethodPost, URL: base + path, Body: body,
		Header: http.Header{"Content-Type": {"application/json"}, "Accept-Encoding": {"identity"}}}, err
}

func withCount(query string, results int) string {
	if strings.Contains(query, "count:") {
		return query
	}
	return query + " count:" + strconv.Itoa(results)
}

func jsonTarget(base, query string, results int) (vegeta.Target, error) {
	return getTarget(base, "/-/api/v1/search", url.Values{"q": {withCount(query, results)}}, "application/json")
}

func streamTarget(base, query string, results int) (vegeta.Target, error) {
	return getTarget(base, "/.api/search/stream", url.Values{"q": {withCount(query, results)}, "v": {"V3"}, "cm": {"t"}}, "text/event-stream")
}

func graphQLTarget(base, query string, results int) (vegeta.Target, error) {
	const search = `query ($query: String!) { search(query: $query, version: V3) { results { results { __typename ... on FileMatch {
repository { name, url } file { name, path, url, commit { oid } } lineMatches { preview, lineNumber, offsetAndLengths, limitHit } } }
limitHit, cloning { name }, missing { name }, timedout { name }, resultCount, elapsedMilliseconds } } }`
	return postTarget(base, "/.api/graphql", map[string]any{"query": search, "variables": map[string]string{"query": withCount(query, results)}})
}

// zoektTarget asks for the same: so many files, with a search as deep as that needs.
func zoektTarget(base, query string, results int) (vegeta.Target, error) {
	return postTarget(base, "/api/search", map[string]any{"Q": query, "Opts": map[string]any{
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
