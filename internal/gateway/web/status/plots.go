package status

// unit is the unit of a plot.
type unit int

const (
	plain unit = iota
	bytes
	seconds
)

// plot is a plot of a metric.
type plot struct {
	section, title string
	what           string // of an axis: "requests/s"
	unit           unit
	of             string // unit of the sum of a rate, with a space
	metric         string
	isRate         bool   // of the increase of the metric: of the sum of a histogram
	by             string // label with the names of lines; "": there is one line
	without        string // value of that label that is left out
	label, value   string // if set, only metrics with this value of a label
}

const (
	sectionRequests = "Requests"
	sectionPacks    = "Cache and cold packs"
	sectionCPU      = "CPU and memory"
	sectionMirrors  = "Mirrors"
	sectionStore    = "Object storage"
	sectionNodes    = "Storage nodes"
	sectionSearch   = "Search index"
)

var sections = []string{sectionRequests, sectionPacks, sectionCPU, sectionNodes, sectionMirrors, sectionStore,
	sectionSearch}

// plots are all plots. Those without data are left out of the page.
var plots = []plot{
	{section: sectionRequests, title: "Requests", what: "requests/s", metric: "packhorse_requests_total",
		isRate: true, by: "operation"},
	{section: sectionRequests, title: "Failed requests", what: "requests/s", metric: "packhorse_requests_total",
		isRate: true, by: "result", without: "ok"},
	{section: sectionRequests, title: "Were they fast enough?", what: "requests/s",
		metric: "packhorse_sli_requests_total", isRate: true, by: "verdict"},
	{section: sectionRequests, title: "Responses to Git", what: "bytes/s", metric: "packhorse_served_bytes_total",
		unit: bytes, isRate: true},
	{section: sectionRequests, title: "Running requests by lane", what: "requests", metric: "packhorse_lane_running",
		by: "lane"},
	{section: sectionRequests, title: "Entry to lanes", what: "requests/s", metric: "packhorse_lane_requests_total",
		isRate: true, by: "outcome"},
	{section: sectionPacks, title: "Packs from the cache", what: "packs/s", metric: "packhorse_cache_requests_total",
		isRate: true, by: "result"},
	{section: sectionPacks, title: "Size of the cache", what: "bytes", metric: "packhorse_cache_bytes", unit: bytes},
	{section: sectionPacks, title: "Cold packs", what: "packs/s", metric: "packhorse_packs_made_total", isRate: true,
		by: "source"},
	{section: sectionPacks, title: "Cold packs in the making", what: "packs", metric: "packhorse_cache_fill_seconds",
		isRate: true, of: " s"},
	{section: sectionCPU, title: "CPU", what: "CPUs", metric: "packhorse_tree_cpu_seconds_total", isRate: true,
		by: "part", of: " s"},
	{section: sectionCPU, title: "CPU of Git commands", what: "CPUs", metric: "packhorse_git_cpu_seconds_total",
		isRate: true, by: "subcommand", of: " s"},
	{section: sectionCPU, title: "Memory", what: "bytes", metric: "packhorse_tree_memory_bytes", unit: bytes,
		by: "part", label: "kind", value: "anonymous"},
	{section: sectionMirrors, title: "Mirrors in use", what: "mirrors", metric: "packhorse_mirrors", by: "state"},
	{section: sectionMirrors, title: "Age of the oldest failing mirror", what: "age",
		metric: "packhorse_mirror_staleness_max_seconds", unit: seconds},
	{section: sectionMirrors, title: "Requests to origins", what: "requests/s",
		metric: "packhorse_origin_requests_total", isRate: true, by: "operation"},
	{section: sectionStore, title: "Reachable", what: "1: yes", metric: "packhorse_store_reachable"},
	{section: sectionStore, title: "Requests to the storage", what: "requests/s",
		metric: "packhorse_store_requests_total", isRate: true, by: "operation"},
	{section: sectionStore, title: "Freshness checks", what: "checks/s", metric: "packhorse_store_checks_total",
		isRate: true, by: "result"},
	{section: sectionStore, title: "Local copies", what: "bytes", metric: "packhorse_store_cache_bytes", unit: bytes},
	{section: sectionSearch, title: "Repositories", what: "repositories", metric: "packhorse_search_repositories",
		by: "state"},
	{section: sectionSearch, title: "Searches", what: "searches/s", metric: "packhorse_search_total", isRate: true,
		by: "result"},
}
