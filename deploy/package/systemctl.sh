#!/bin/sh
# What the guide asks of systemctl, where there is no systemd: kvd by its unit's command line.
#
#   sh systemctl.sh daemon-reload | [enable --now|start|restart|stop] kvd
set -eu

pidfile=/run/kvd.pid

stop() {
  [ -s "$pidfile" ] || return 0
  pid=$(cat "$pidfile")
  kill -TERM "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  rm -f "$pidfile"
}

# Until it is ready, as a unit of the type notify.
start() {
  setsid sh /usr/local/sbin/as-unit >>/var/log/kvd.log 2>&1 </dev/null &
  echo $! >"$pidfile"
  tries=0
  until kvdctl status >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || { tail -n 20 /var/log/kvd.log >&2; exit 1; }
    sleep 0.1
  done
}

case "$*" in
  daemon-reload) ;;
  "enable --now kvd" | "start kvd") start ;;
  "restart kvd") stop; start ;;
  "stop kvd") stop ;;
  *) echo "systemctl: the root has no systemd, and its stand-in cannot: $*" >&2; exit 1 ;;
esac
