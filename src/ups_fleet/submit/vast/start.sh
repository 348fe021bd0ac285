API=${VAST_URL:-https://console.vast.ai}/api/v0/instances
W=${UPS_WORK:-/root/ups}
# Vast gives each machine a key that may stop this machine and no other. The run does not see it.
export -n CONTAINER_API_KEY
mkdir -p "$W"; cd "$W" || { W=/tmp; cd /tmp; }
# All that is printed goes to `vastai logs`, which needs no disk here, and to a file.
exec > >(trap '' TERM INT HUP; exec tee -a launch.log) 2>&1
say() { echo "ups launch: $*"; }
# A machine that was started again has no new lease.
[ -s born ] || date +%s >born
BORN=$(cat born); BORN=${BORN:-$(date +%s)}
PY=${UPS_PYTHON:-$W/venv/bin/python}
# What may need the network is tried five times.
again() {
  for n in 1 2 3 4 5; do
    "$@" && return
    [ ! "$ENDING" ] || return
    say "$*: try $n failed"; sleep $((n * n * ${UPS_PAUSE:-5}))
  done
  return 1
}
# git holds every file against the commit.
code() {
  mkdir -p "$W/code"; cd "$W/code" || return
  [ -d .git ] || git init -q || return
  git fetch -q --depth 1 "$REPO" "$COMMIT" || git fetch -q "$REPO" '+refs/heads/*:refs/heads/r/*' || return
  git checkout -qf "$COMMIT" && [ "$(git rev-parse HEAD)" = "$COMMIT" ]
}
packages() {
  local pins; [ ! -f constraints.txt ] || pins="-c constraints.txt"
  [ -x "$PY" ] || python3 -m venv "$W/venv" || return
  "$PY" -m pip install -q $pins "$PACKAGE"
}
work() {
  trap ENDING=1 TERM
  again code || return 3
  cd "$W/code"
  if [ "$UPS_PYTHON" ]; then export PYTHONPATH=$PWD/src; else again packages || return 3; fi
  cd "$PLACE" || return 2
  for what in $DATA; do again "$PY" -m ups data fetch "$what" --to data || return 3; done
  say the run begins
  "$PY" -m ups run "${RUN[@]}" --out="$W/runs" --resume
}
# The log goes to the store.
home() {
  timeout 300 "$PY" -c 'import sys, fsspec
fs, path = fsspec.url_to_fs(sys.argv[1])
fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
fs.put_file("launch.log", path)' "$STORE/$JOB.log"
}
# METHOD BODY: whether the server agrees. The key is on no command line.
call() {
  local url=$API/$CONTAINER_ID/ json='Content-Type: application/json' answer
  if command -v curl >/dev/null; then
    answer=$(printf 'header="Authorization: Bearer %s"' "$CONTAINER_API_KEY" |
      curl -sSm30 -K- -X "$1" -H "$json" -d "$2" "$url" 2>&1)
  else
    answer=$(printf %s "$CONTAINER_API_KEY" | python3 -c 'import sys, urllib.request as u
m, b, a = sys.argv[1:]
h = {"Authorization": "Bearer " + sys.stdin.read(), "Content-Type": "application/json"}
print(u.urlopen(u.Request(a, b.encode(), h, method=m), timeout=30).read())' "$1" "$2" "$url" 2>&1 | tail -1)
  fi
  [[ $answer =~ '"success":'\ *true ]] || { say "$1: ${answer:0:200}"; return 1; }
}
# Waits for the end of the work, or of the lease, and gives the machine back: destroyed where all is in the store. A run
# whose copy there lacks something says so in the log.
guard() {
  local n=1 last=0 code whole
  while grep -qs '^State:.[^ZX]' /proc/$WORK/status; do
    if (($(date +%s) - BORN >= LEASE)); then say "the lease is over"; break; fi
    if [ "$STORE" ] && ((SECONDS - last >= 60)); then last=$SECONDS; home 2>/dev/null; fi
    sleep 1
  done
  kill -TERM -$WORK
  for ((n = 0; n < GRACE; n++)); do kill -0 -$WORK || break; sleep 1; done
  kill -KILL -$WORK
  code=$(cat code.txt)
  say "ended with code ${code:-137}, left $(find runs -type f | wc -l) files"
  sleep 1
  if [ "$STORE" ] && [ "$code" ]; then
    if grep -q 'does not have all of' launch.log || ! home; then say "the store lacks something"; else whole=1; fi
  fi
  n=1
  until { [ "$whole" ] && call DELETE '{}'; } || call PUT '{"state":"stopped"}'; do
    # The last resort, an hour after the lease, where a machine may do that; where not, it goes on asking.
    if (($(date +%s) - BORN >= LEASE + ${UPS_LAST:-3600})); then say "powers off"; poweroff; fi
    sleep $n; n=$((n < 60 ? n * 2 : 60))
  done
  say "the machine is given back"
}
# Each of the two has a process group of its own. A guard that was killed is replaced.
set -m
rm -f code.txt
{ work; echo $? >"$W/code.txt"; } & WORK=$!
trap 'kill -TERM -$WORK' TERM INT HUP
while :; do
  guard 2>/dev/null & GUARD=$!
  while wait $GUARD; c=$?; kill -0 $GUARD; do :; done 2>/dev/null
  ((c)) || exit 0
done
