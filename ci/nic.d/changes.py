"""The NIC changes, or its user dies, under traffic."""

from nic import WEST
from nic_cases import case, expect

RUNS = "--verify -s 4096"


def traffic(nics, options="", seconds=12):
    """A server and a client that run for some seconds; returns both jobs when octets flow."""
    serving = nics.serve("perf write-bw", options, timeout=90)
    client = nics.bed.spawn("east", f"{nics.ctl} perf write-bw --netdev nic0 {RUNS} -D {seconds} {options} {WEST}", 90)
    # The table's head is printed behind the connection's exchange.
    nics.wait(lambda: "#bytes" in client.output() or not client.running(), "the client connects", 40)
    expect("#bytes" in client.output(), "the client does not connect:", client.output(), serving.output())
    return serving, client


def expect_both_end_well(serving, client, what):
    done, served = client.wait(), serving.wait()
    expect(done.code == 0 and served.code == 0, f"{what}: the sides end with {done.code} and {served.code}",
           done.output, served.output)


@case("the link goes down and comes up")
def _(nics):
    # Over both queues: each of them is full when the link comes up.
    serving, client = traffic(nics, "-q 4")
    nics.west("ip link set dev nic1 down; sleep 1; ip link set dev nic1 up; ip address replace 10.79.0.2/24 dev nic1").checked()
    expect_both_end_well(serving, client, "a link that was down for a second")
    nics.wait_for_carrier()


@case("the number of queues changes")
def _(nics):
    serving, client = traffic(nics)
    said = nics.west("ethtool -L nic1 combined 1; sleep 1; ethtool -L nic1 combined 2").output
    done, served = client.wait(), serving.wait()
    # The kernel refuses to take a queue away that has a socket; where the driver does it, nothing
    # may hang.
    expect(done.code in (0, 1) and served.code in (0, 1), "it hangs or crashes:", said, done, served)
    nics.west("ethtool -L nic1 combined 2")
    nics.wait_for_carrier()
    nics.perf("write-bw", "--verify -s 4096 -n 40")


@case("the MTU changes")
def _(nics):
    serving, client = traffic(nics)
    said = nics.west("ip link set dev nic1 mtu 1400; sleep 1; ip link set dev nic1 mtu 1500").output
    done, served = client.wait(), serving.wait()
    expect(done.code in (0, 1) and served.code in (0, 1), "it hangs or crashes:", said, done, served)
    nics.wait_for_carrier()
    nics.perf("write-bw", "--verify -s 4096 -n 40")


# What administrators set while traffic flows; a driver may refuse one.
SETTINGS = (
    "-C nic1 rx-usecs 50", "-C nic1 rx-usecs 3", "-K nic1 rx off", "-K nic1 tx off", "-K nic1 tso off gso off", "-K nic1 gro off",
    "-K nic1 rx on", "-K nic1 tx on", "-K nic1 tso on gso on", "-K nic1 gro on", "-K nic1 rxvlan off", "-K nic1 rxvlan on",
    "-A nic1 rx off tx off", "-X nic1 equal 1", "-X nic1 default", "-G nic1 rx 128", "-G nic1 rx 256",
)


@case("ethtool changes what it can under traffic")
def _(nics):
    serving = nics.serve("perf send-bw", timeout=300)
    # Each message is verified.
    client = nics.bed.spawn("east", f"exec {nics.ctl} perf send-bw --netdev nic0 {RUNS} -q 2 -D 600 {WEST}", 300)
    nics.wait(lambda: "#bytes" in client.output() or not client.running(), "the client connects", 40)
    said, count = [], 0
    try:
        for each in SETTINGS:
            result = nics.west(f"ethtool {each}")
            said.append(f"ethtool {each}: {result.output}[{result.code}]")
            count += result.code == 0
            running = client.running() and serving.running()
            expect(running, "a side ends:", *said, client.output(), serving.output())
        nics.wait_for_carrier()
    finally:
        done = nics.end(client)
        served = nics.end(serving)
    expect(done.code == 0, "the client fails:", *said, done.output, served.output)
    expect(count >= 6, "the driver refuses nearly all:", *said)
    nics.perf("write-bw", "--verify -s 4096 -n 40")


def unbind(nics):
    """Unbinds the driver of the west's NIC. Returns what binds it again."""
    bind, name = nics.west("""set -e
        name=$(basename $(readlink -f /sys/class/net/nic1/device))
        driver=$(readlink -f /sys/class/net/nic1/device/driver)
        echo $name >$driver/unbind
        echo $driver/bind $name""").checked().split()

    def bind_again():
        nics.bed.guest.run(f"echo {name} >{bind}").checked()
        nics.bed.bind_again("west")

    return bind_again


@case("the driver is unbound")
def _(nics):
    # Longer than the unbinding takes on a busy machine; the sides end as soon as the device is
    # gone.
    serving, client = traffic(nics, seconds=60)
    bind_again = unbind(nics)
    done, served = client.wait(), serving.wait()
    bind_again()
    expect(done.code == 1 and served.code == 1, "the sides do not end with an error:", done, served)
    expect("nic1" in served.output, "the server's message does not name the interface:", served.output)
    nics.wait_for_carrier()
    nics.perf("write-bw", "--verify -s 4096 -n 40")


def killed_and_opened_again(nics, times):
    for number in range(times):
        # Longer than the kill may take on a busy machine; the sides end with it.
        serving, client = traffic(nics, seconds=60)
        nics.kill("west" if number % 2 else "east")
        done, served = client.wait(), serving.wait()
        expect(137 in (done.code, served.code), "neither was killed:", done, served)
        nics.wait_for_carrier()
    nics.perf("write-bw", "--verify -s 4096 -n 40")


@case("killed with -9 under traffic and opened again, 3 times")
def _(nics):
    killed_and_opened_again(nics, 3)


@case("killed with -9 under traffic and opened again, 50 times", long=True)
def _(nics):
    killed_and_opened_again(nics, 50)
