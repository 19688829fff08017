package roles

// SearchWorker is the command as which a server starts this program again, to index and to search.
const SearchWorker = "search-worker"
